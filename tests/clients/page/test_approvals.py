"""Deciding on tool calls, in the card that shows them (API-5, AGT-8)."""

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.clients.page.test_sessions import started
from tests.harness import Environment, asks, says
from turnkeeper.models.transcript.conversation import FileChange
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

UNSEEN = "\u202eolleh\u202c \u200bü🙂\u2028\x85\U000e0041\u3164"
UNSEEN_SHOWN = "<U+202E>olleh<U+202C> <U+200B>ü🙂<U+2028><U+0085><U+E0041><U+3164>"
"""Turned around, hidden, or on a line of its own; and how it is shown."""

TEXT = "What you decide on"

PAY = ("pay", {"to": "Registrar", "amount": 12})


async def open_session_with_approvals(tab: Tab, env: Environment) -> None:
    """Open a session in which `pay` needs approval."""
    await tab.open(await started(tab.url, tool_policy={"pay": "ask"}))


async def test_api_5_a_call_is_approved_in_its_card_beside_its_arguments(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(PAY), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.state).to_have_text("A tool call needs your approval.")
    await expect(tab.page).to_have_title("(!) Pay · Turnkeeper")
    await expect(tab.tools.get_by_label(TEXT, exact=True)).to_be_visible()
    await expect(tab.tools.get_by_label(TEXT, exact=True)).to_contain_text('to: "Registrar"')
    assert env.tools.calls == []
    await tab.button("Approve").click()
    await tab.shows(1)
    assert [call.name for call in env.tools.calls] == ["pay"]
    await expect(tab.page.locator(".approval")).to_have_count(0)
    await expect(tab.tools).to_contain_text("Approved")
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_be_hidden()  # a line again, like other calls
    await expect(tab.tools.locator("summary")).to_be_focused()
    await tab.shows_the_transcript()


async def test_api_5_the_reason_of_a_rejection_is_sent_to_the_model(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(PAY), says("I see.")]
    await tab.send("Pay")
    await tab.button("Reject…").click()
    await tab.page.get_by_label("Reason, sent to the model").fill("Far too much")
    await tab.page.keyboard.press("Escape")  # back to the choice, and not Stop
    await expect(tab.button("Approve")).to_be_focused()
    await expect(tab.stop).to_be_visible()
    await tab.button("Reject…").click()
    await expect(tab.page.get_by_label("Reason, sent to the model")).to_have_value("Far too much")
    await tab.button("Reject").click()
    await tab.shows(1)
    assert env.tools.calls == []
    await expect(tab.tools).to_contain_text("Rejected: Far too much")
    await expect(tab.tools.locator(".tool-state")).to_have_text("rejected")
    await expect(tab.tools.get_by_label("Result", exact=True)).to_have_count(0)  # it would say the reason again
    assert "Far too much" in env.vendor.requests[-1].model_dump_json()


async def test_api_5_a_tool_that_is_allowed_for_the_session_needs_no_more_approvals(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(PAY), says("Paid."), asks(PAY), says("Paid again.")]
    await tab.send("Pay")
    await tab.button("Allow for this session").click()
    await tab.shows(1)
    await tab.send("Pay again")
    await tab.shows(2)
    assert len(env.tools.calls) == 2


async def test_api_5_text_typed_in_one_card_survives_a_decision_in_another(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(PAY, ("pay", {"to": "Landlord", "amount": 900})), says("Done.")]
    await tab.send("Pay both")
    await expect(tab.page.locator(".approval")).to_have_count(2)
    second = tab.page.locator(".tool", has_text="Landlord")
    await second.get_by_role("button", name="Reject…").click()
    await second.get_by_label("Reason, sent to the model").fill("Not this month")
    await tab.page.locator(".tool", has_text="Registrar").get_by_role("button", name="Approve").click()
    await expect(tab.page.locator(".approval")).to_have_count(1)
    await expect(second.get_by_label("Reason, sent to the model")).to_have_value("Not this month")
    await second.get_by_role("button", name="Reject", exact=True).click()
    await tab.shows(1)
    assert [call.args["to"] for call in env.tools.calls] == ["Registrar"]


async def test_api_5_invisible_and_reversing_characters_are_visible_in_an_approval(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(("pay", {"to": UNSEEN}), ("pay", {"to": UNSEEN * 2_000})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.page.locator(".approval")).to_have_count(2)
    await expect(tab.tools.first.locator(".tool-gist")).to_have_text(f'to: "{UNSEEN_SHOWN}"', use_inner_text=True)
    texts = tab.tools.get_by_label(TEXT, exact=True)
    await expect(texts.first).to_contain_text(f'Arguments:\n  to: "{UNSEEN_SHOWN}"', use_inner_text=True)
    await expect(texts.last).to_contain_text(UNSEEN_SHOWN)
    assert not set(UNSEEN) & set(await texts.last.text_content() or "") - set("hello ü🙂")


async def test_api_5_an_approval_with_large_arguments_does_not_steal_the_focus(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(("pay", {"to": "Registrar" * 5_000})), says("Paid.")]
    await tab.send("Pay")
    await tab.text.press_sequentially("And ")
    await expect(tab.tools.get_by_label(TEXT, exact=True)).to_contain_text("RegistrarRegistrar")
    await expect(tab.text).to_be_focused()


async def test_api_5_arguments_show_their_lines_and_buttons_fit_in_one_row_on_a_phone(
    tab: Tab, env: Environment
) -> None:
    await open_session_with_approvals(tab, env)
    env.vendor.script = [asks(("pay", {"to": "Registrar", "note": "Dear all,\n\tamount: 1\nYours"})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.tools.get_by_label(TEXT, exact=True)).to_contain_text(
        '  to: "Registrar"\n  note: 3 lines\n    | Dear all,\n    | <tab>amount: 1\n    | Yours', use_inner_text=True
    )
    for width in (360, 390):
        await tab.emulate(viewport={"width": width, "height": 800})
        boxes = [await tab.button(name).bounding_box() for name in ("Approve", "Allow for this session", "Reject…")]
        assert len({box["y"] for box in boxes if box}) == 1


async def test_agt_8_the_page_shows_numbers_exactly_as_the_tool_gets_them(tab: Tab, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="refund", server="shop", description="It can't be undone.")]
    account = 7960607143101464576
    env.vendor.script = [asks(("refund", {"10": 1.0, "9": -0.0, "account": account})), says("Done.")]
    await tab.open(await started(tab.url))
    await tab.send("Refund")
    text = tab.tools.get_by_label(TEXT, exact=True)
    await expect(text).to_have_text(
        "Tool: refund\nServer: shop\nPurpose:\n  | It can't be undone.\n"
        "Effect: changes something; runs at most once, says the server\n"
        f"Arguments:\n  10: 1.0\n  9: -0.0\n  account: {account}",
        use_inner_text=True,
    )
    await tab.button("Approve").click()
    await tab.shows(1)
    assert env.tools.calls[0].args == {"10": 1.0, "9": -0.0, "account": account}
    await tab.tools.locator("summary").click()
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_have_text(
        f"10: 1.0\n9: -0.0\naccount: {account}", use_inner_text=True
    )


async def test_agt_8_the_page_says_that_more_lines_of_an_approval_are_below(tab: Tab, env: Environment) -> None:
    await open_session_with_approvals(tab, env)
    script = "\n".join(["ls", *[f"echo {number}" for number in range(80)], "rm -rf /"])
    env.vendor.script = [
        asks(("pay", {"command": script}), ("pay", {"command": "ls" + "\n" * 80 + "evil"})),
        says("Done."),
    ]
    await tab.send("Pay")
    first, second = tab.page.locator(".approval").nth(0), tab.page.locator(".approval").nth(1)
    await expect(first.get_by_role("button", name="more lines below")).to_be_visible()
    await first.get_by_label(TEXT, exact=True).evaluate("box => box.scrollTo(0, box.scrollHeight)")
    await expect(first.get_by_role("button", name="more lines below")).to_be_hidden()
    await expect(second).to_contain_text("(79 blank lines)")
    await expect(second.get_by_text("| evil")).to_be_in_viewport()
    await expect(second.get_by_role("button", name="more lines below")).to_be_hidden()


async def test_agt_8_the_page_says_whether_a_file_is_created_or_replaced(tab: Tab, env: Environment) -> None:
    async def change_of(invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        is_new = invocation.args["path"] == "b.md"
        return FileChange(note="as it is", diff="@@ -1,1 +1,1 @@\n-old\n+new", sha256="" if is_new else "0" * 64)

    env.tools.specs = [ToolSpec(name="file_write", effect="idempotent", built_in=True)]
    env.tools.preview = change_of  # type: ignore[method-assign]
    calls = [("file_write", {"path": path, "content": "new"}) for path in ("a.md", "b.md")]
    env.vendor.script = [asks(*calls), says("Done.")]
    await tab.open(await started(tab.url))
    await tab.send("Write")
    for label, question in (
        ('Decide on file_write, call 1.1.0: path: "a.md", content: "new"', "Replace the file a.md?"),
        ('Decide on file_write, call 1.1.1: path: "b.md", content: "new"', "Create the file b.md?"),
    ):
        card = tab.page.get_by_role("group", name=label)
        await expect(card).to_contain_text(question)
        await expect(card.locator(".removed")).to_have_text("\n  -old", use_inner_text=False)
