"""Files of prompts on the page: pasted, dropped and chosen, shown in the turn, never lost on a failed send: CTX-16."""

import asyncio
from base64 import b64decode, b64encode

from playwright.async_api import FilePayload, expect

from tests.clients.page.tab import Tab, http_client
from tests.harness import Environment, asks, says
from tests.vendors.media import PNG
from turnkeeper.models.transcript.attachments import FileAttachment, ImageAttachment
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation

COPY_A_PICTURE = """async () => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 200;
  const pen = canvas.getContext("2d");
  for (let x = 0; x < 200; x += 2) {
    pen.fillStyle = `rgb(${(x * 89) % 256} ${(x * 151) % 256} ${(x * 53) % 256})`;
    for (let y = 0; y < 200; y += 2) pen.fillRect(x, (y * x) % 200, 2, 2);
  }
  const picture = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
}"""

DROP = """() => {
  const data = new DataTransfer();
  data.items.add(new File(["a,b\\n1,2\\n"], "numbers.csv", { type: "text/csv" }));
  const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector("#log").dispatchEvent(drop);
}"""

PASTE_CELLS = """() => {
  const data = new DataTransfer();
  data.setData("text/plain", "1\t2");
  data.setData("text/html", "<table><tr><td>1</td><td>2</td></tr></table>");
  data.items.add(new File(["a picture of them"], "image.png", { type: "image/png" }));
  const paste = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  document.querySelector("#composer-text").dispatchEvent(paste);
}"""

PDF: FilePayload = {"name": "report.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7\n" + b"a page " * 2_000}


async def test_ctx_16_a_pasted_image_reaches_the_model_and_is_shown_in_its_turn(tab: Tab, env: Environment) -> None:
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await tab.open()
    await tab.page.evaluate(COPY_A_PICTURE)
    await tab.text.fill("What is this?")
    await tab.text.press("ControlOrMeta+v")
    chips = tab.page.locator("#attachments > li")
    await expect(chips).to_have_count(1)
    await expect(chips.locator("img")).to_have_js_property("complete", True)
    await tab.page.evaluate(DROP)
    await tab.page.locator("#attach-input").set_input_files([PDF])
    await expect(chips).to_have_count(3)
    await tab.page.get_by_role("button", name="Remove: numbers.csv").click()
    await tab.page.evaluate(PASTE_CELLS)
    await expect(chips).to_have_count(2)
    await tab.text.press("Enter")
    await tab.shows(1)
    await expect(chips).to_have_count(0)

    image, pdf = env.vendor.turn_requests[0].messages[-1].attachments
    assert isinstance(image, ImageAttachment)
    assert isinstance(pdf, FileAttachment)
    assert b64decode(image.data).startswith(b"\x89PNG")
    assert (pdf.name, b64decode(pdf.data)) == ("report.pdf", PDF["buffer"])
    for _ in range(2):
        picture = tab.turns.locator(".attachments img")
        await picture.scroll_into_view_if_needed()
        await expect(picture).to_have_js_property("naturalWidth", 200)
        link = tab.turns.get_by_role("link", name="report.pdf")
        await expect(link).to_have_attribute("href", f"/workflow/{tab.session}/attachments/{pdf.hash}?name=report.pdf")
        await tab.load(tab.session)


LONG_NAME = "a long name of a file that does not fit in one line " * 3 + ".csv"


async def test_ctx_16_attachments_of_prompts_and_tool_results_are_shown(tab: Tab, env: Environment) -> None:
    async def screenshot(_: ToolInvocation) -> ToolResult:
        picture = {"type": "image", "name": "dot.png", "media_type": "image/png", "data": b64encode(PNG).decode()}
        return ToolResult.model_validate({"outcome": "taken", "attachments": [picture]})

    env.tools.run = screenshot
    env.vendor.script += [asks(("look", {"path": "a"})), says("A dot.")]
    session = (await env.start()).handle.id
    await tab.open(session)
    code = {"type": "code", "name": "add.py", "language": "python", "content": "print('ä' + \"#\")"}
    csv = {"type": "file", "name": LONG_NAME, "media_type": "text/csv", "data": b64encode(b"a,b\n" * 3_000).decode()}
    async with http_client(tab.url) as http:
        body = {"message": "Look.", "attachments": [code, csv]}
        assert (await http.post(f"/workflow/{session}/prompt", json=body)).status_code == 202
    await tab.shows(1)

    # The picture is seen while the card is folded.
    await expect(tab.tools.get_by_text("taken")).to_be_hidden()
    picture = tab.tools.get_by_role("img", name="dot.png")
    await picture.scroll_into_view_if_needed()
    await expect(picture).to_have_js_property("naturalWidth", 1)
    size = await tab.turns.get_by_text("12 KB", exact=True).bounding_box()
    assert size is not None
    assert size["height"] < 30, "the size of a file with a long name is in several lines"
    async with tab.page.expect_download() as downloading:
        await tab.turns.get_by_role("link", name="add.py").click()
    download = await downloading.value
    content = await asyncio.to_thread((await download.path()).read_text)
    assert (download.suggested_filename, content) == ("add.py", code["content"])


async def test_ctx_16_invalid_files_are_rejected_and_files_of_a_failed_prompt_are_restored(
    tab: Tab, env: Environment
) -> None:
    await tab.open()
    chooser = tab.page.locator("#attach-input")
    await chooser.set_input_files(
        [
            {"name": "huge.bin", "mimeType": "application/zip", "buffer": b"x" * 7_000_001},
            {"name": "old.bmp", "mimeType": "image/bmp", "buffer": b"BM"},
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"remember the milk"},
        ]
    )
    await expect(tab.notice).to_contain_text("huge.bin is over 7.0 MB. old.bmp: images must be PNG, JPEG, GIF or WebP.")
    chips = tab.page.locator("#attachments > li")
    await expect(chips).to_have_text(["notes.txt"])

    tab.may_be_cut_off = True
    await tab.page.route("**/prompt", lambda route: route.fulfill(status=422, json={"detail": "Not like this."}))
    await tab.text.press("Enter")  # files alone are a prompt too
    await expect(tab.queue).to_contain_text("[notes.txt]")
    await tab.button("Edit").click()
    await expect(chips).to_have_text(["notes.txt"])
    await tab.page.unroute("**/prompt")
    await tab.send("And this?")
    await tab.shows(1)
    (note,) = env.vendor.turn_requests[0].messages[-1].attachments
    assert isinstance(note, FileAttachment)
    assert (note.name, b64decode(note.data)) == ("notes.txt", b"remember the milk")
