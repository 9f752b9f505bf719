"""A conversation, as a person has it in the page (API-5)."""

import re

import pytest
from playwright.async_api import Route, expect

from tests.clients.page.tab import Tab, http_client
from tests.harness import Environment, Gate, asks, says
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.transcript.conversation import ToolResult, Usage
from turnkeeper.models.transcript.model_call import ModelResponse, RespondPart, ThinkPart


def gated_answer(*before: Delta, then: str) -> tuple[Gate, list[object]]:
    """An answer that stops in the middle until its gate is opened."""
    gate = Gate(is_open=False)
    return gate, [*before, gate, says(then)]


async def test_api_5_a_first_prompt_starts_a_session_and_streams_its_answer(tab: Tab, env: Environment) -> None:
    start, done = Gate(is_open=False), Gate(is_open=False)
    env.vendor.script = [
        [
            Delta("think", "He greets."),
            start,
            Delta("respond", "**Hel"),
            done,
            Delta("respond", "lo**"),
            says("**Hello**"),
        ]
    ]
    await tab.open()
    await tab.send("Hi there")
    await expect(tab.page.locator(".thinking .peek")).to_have_text("He greets.")
    start.open()
    await expect(tab.growing).to_have_text("**Hel")
    await expect(tab.state).to_have_text("Working on it")
    done.open()
    await tab.shows(1)
    await expect(tab.answers.locator("strong")).to_have_text("Hello")
    await expect(tab.state).to_have_text("")
    await tab.shows_the_transcript()


WATCH_THE_PROMPT = """() => {
  window.gaps = 0;
  window.isBegun = false;
  const count = () => {
    const shown = [...document.querySelectorAll("#log .bubble")].filter((one) => one.textContent === "Hello").length;
    if (shown !== 1 && window.isBegun) window.gaps += 1;
    if (shown === 1) window.isBegun = true;
  };
  new MutationObserver(count).observe(document.querySelector("#log"), { subtree: true, childList: true });
  const frame = () => { count(); requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


@pytest.mark.parametrize("slow", ["POST .*/workflow", "GET .*/full.*", "POST .*/prompt", "GET .*/events.*"])
async def test_api_5_the_first_prompt_of_a_session_does_not_flicker(tab: Tab, slow: str) -> None:
    """U5: from its echo on it is shown, once, whatever is slow."""
    gate = Gate(is_open=False)

    async def hold(route: Route) -> None:
        if re.fullmatch(slow, f"{route.request.method} {route.request.url}"):
            await gate.pass_through()
        await route.continue_()

    await tab.page.route("**/workflow**", hold)
    await tab.page.route("**/workflow/**", hold)
    await tab.open()
    await tab.page.evaluate(WATCH_THE_PROMPT)
    await tab.send("Hello")
    await expect(tab.page.locator("#echo .bubble")).to_have_text("Hello")
    await gate.until_arrived(1)
    if "prompt" in slow:
        await expect(tab.turns).to_have_count(0)
    gate.open()
    await tab.shows(1)
    assert await tab.page.evaluate("[window.isBegun, window.gaps]") == [True, 0]


async def test_api_5_a_tool_call_is_a_card_with_its_name_arguments_and_result(tab: Tab, env: Environment) -> None:
    async def look(invocation):
        return ToolResult(outcome="2 matches", content="a.py\nb.py", duration_ms=1_234)

    env.tools.run = look
    env.tools.gate.close()
    is_written, call = Gate(is_open=False), asks(("look", {"path": "src"}), text="Let me look.")
    env.vendor.script = [[Delta("call", "look"), is_written, call], says("Two files.")]
    await tab.open()
    await tab.send("What is there?")
    await expect(tab.tools.locator("summary")).to_have_text("lookpreparing")
    is_written.open()
    await expect(tab.tools).to_contain_text("running")
    env.tools.gate.open()
    await tab.shows(1)
    await expect(tab.tools).to_have_count(1)
    await expect(tab.tools.locator("summary")).to_have_text('lookpath: "src"done1.2 s')
    await expect(tab.tools.get_by_text("2 matches")).to_be_hidden()
    await tab.tools.locator("summary").click()
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_have_text('path: "src"')
    await expect(tab.tools.get_by_label("Result", exact=True)).to_have_text("a.py\nb.py")
    await tab.shows_the_transcript()


async def test_api_5_large_texts_and_results_are_shown_in_full_on_request(tab: Tab, env: Environment) -> None:
    text = "\n\n".join(f"paragraph {number}" for number in range(2_000))
    lines = "".join(f"line {number}\n" for number in range(2_000))

    async def look(invocation):
        return ToolResult(outcome="2,000 lines", content=lines)

    env.tools.run = look
    env.vendor.script = [asks(("look", {}), text=text), says("Read.")]
    await tab.open()
    await tab.send("Think aloud")
    await tab.shows(1)
    prose, show_all = tab.page.locator("#turns .prose").first, tab.page.get_by_role("button", name="Show all")
    assert "paragraph 1000" not in (await prose.text_content() or "")
    await show_all.click()
    await expect(prose).to_contain_text("paragraph 1000")
    await expect(show_all).to_have_count(0)
    await tab.tools.locator("summary").click()
    result = tab.tools.get_by_label("Result", exact=True)
    assert "line 1000" not in (await result.text_content() or "")
    await show_all.click()
    await expect(result).to_have_text(lines)


async def test_api_5_an_answer_sent_as_an_excerpt_is_shown_and_copied_in_full(tab: Tab, env: Environment) -> None:
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    whole = "\n\n".join(f"paragraph {number}" for number in range(2_000))
    env.vendor.script = [says(whole)]
    await tab.open()
    await tab.send("Say it all")
    await tab.shows(1)
    session = tab.session

    async def without_the_store(route):  # what the gateway sends when it could not read it in time
        answer = await route.fetch()
        page = await answer.json()
        [turn] = page["messages"]
        blob = turn["reasoning_trajectory"]["steps"][-1]["text_blob"]
        turn |= {"agent_message": "paragraph 0 … paragraph 1999", "agent_message_blob": blob}
        await route.fulfill(json=page)

    await tab.page.route("**/conversation/full*", without_the_store)
    await tab.open(session)
    await expect(tab.answers).to_have_text("paragraph 0 … paragraph 1999")
    await tab.button("Copy answer").click()
    await expect(tab.page.get_by_title("Copied")).to_be_visible()
    assert await tab.page.evaluate("navigator.clipboard.readText()") == whole
    await tab.page.get_by_role("button", name="Show all").click()
    await expect(tab.answers).to_contain_text("paragraph 1000")


async def test_api_5_a_turn_folds_its_thoughts_shows_its_cost_and_can_be_copied(tab: Tab, env: Environment) -> None:
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = "Like **this**:\n\n```python\nprint(1)\n```"
    usage = Usage(input_tokens=1_000, output_tokens=234, cost=0.0125)
    parts = [ThinkPart(kind="think", text="First this, then that."), RespondPart(kind="respond", text=answer)]
    env.vendor.answer = lambda request: ModelResponse(parts=parts, model="some-model", usage=usage)
    await tab.open()
    await tab.send("How?")
    await tab.shows(1)
    thought = tab.page.get_by_text("First this, then that.")
    await expect(thought).to_be_hidden()
    await tab.page.get_by_text("Thought").click()
    await expect(thought).to_be_visible()
    for name, text in (("Copy answer", answer), ("Copy prompt", "How?"), ("Copy code", "print(1)\n")):
        await tab.button(name).click()
        assert await tab.page.evaluate("navigator.clipboard.readText()") == text
    facts = tab.page.locator(".response .facts")
    await expect(facts).to_contain_text("some-model")
    await expect(facts).to_contain_text("1,234 tokens · $0.01")
    await tab.send("Again")
    await tab.shows(2)
    await expect(tab.page.locator("#session-usage")).to_have_text("2,468 tokens · $0.03")
    await expect(tab.page.locator("#session-context")).to_contain_text("3 of 100 messages, ~")


async def test_api_5_stop_ends_the_running_turn_by_its_button_and_by_escape(tab: Tab, env: Environment) -> None:
    """Escape in another field is that field's."""

    async def escape() -> None:
        for field in ("Search sessions", "Filter sessions by status", "Theme"):
            await tab.page.get_by_label(field).press("Escape")
        async with http_client(tab.url) as http:
            assert (await http.get(f"/workflow/{tab.session}")).json()["status"] == "processing"
        await tab.text.press("Escape")

    await tab.open()
    for stop in (tab.stop.click, escape):
        gate, answer = gated_answer(Delta("respond", "On and on"), then="never")
        env.vendor.script = [answer]
        await tab.send("Talk")
        await gate.until_arrived(1)
        await expect(tab.growing).to_have_text("On and on")
        await stop()
        await expect(tab.stop).to_be_hidden()
        await expect(tab.turns.last.locator(".turn-error")).to_contain_text("You stopped this answer.")
    await tab.shows(2)
    await tab.shows_the_transcript()


async def test_ses_9_the_partial_text_of_a_stopped_answer_survives_a_reload(tab: Tab, env: Environment) -> None:
    gate, answer = gated_answer(Delta("think", "Let me see."), Delta("respond", "On and **on**"), then="never")
    env.vendor.script = [answer]
    await tab.open()
    await tab.send("Talk")
    await gate.until_arrived(1)
    await expect(tab.growing).to_have_text("On and **on**")
    await tab.stop.click()
    for _ in range(2):
        turn = tab.turns.last
        await expect(turn.locator(".step strong")).to_have_text("on")
        await expect(turn.locator(".interrupted")).to_have_text("Stopped here")
        await expect(turn.locator(".turn-error p")).to_have_text("You stopped this answer.")
        await expect(turn.locator(".step")).to_have_count(1)
        await expect(turn.locator(".thinking")).to_have_count(1)
        await tab.shows_the_transcript()
        await tab.page.reload()
    await tab.button("Retry").click()
    await tab.shows(2)
    await expect(tab.turns.last.locator(".prose")).to_contain_text("echo: Talk")


async def test_api_5_prompts_queue_visibly_during_a_turn_and_can_be_removed(tab: Tab, env: Environment) -> None:
    gate, answer = gated_answer(then="first")
    env.vendor.script = [answer]
    await tab.open()
    await tab.send("one")
    await gate.until_arrived(1)
    for text in ("two", "three", "four"):
        await tab.send(text)
    await expect(tab.queue).to_have_count(3)
    await expect(tab.page.locator("#queue-title")).to_have_text("3 prompts queued")
    await tab.button("Remove: three").click()
    await expect(tab.queue.locator(".waiting-text")).to_have_text(["two", "four"])
    gate.open()
    await tab.shows(3)
    assert [turn["asked"] for turn in await tab.shown_turns()] == ["one", "two", "four"]
    await tab.shows_the_transcript()


async def test_api_5_a_prompt_can_be_steered_into_the_running_turn_or_interrupt_it(tab: Tab, env: Environment) -> None:
    env.tools.gate.close()
    gate, answer = gated_answer(Delta("respond", "Once upon a time"), then="never")
    env.vendor.script = [asks(("look", {})), says("As you wish."), answer, says("At once.")]
    await tab.open()
    await tab.send("one")
    await env.tools.gate.until_arrived(1)
    await tab.page.get_by_role("radio", name="Steer").check()
    await tab.send("rather look elsewhere")
    await expect(tab.queue).to_contain_text("joins this turn")
    await expect(tab.page.get_by_role("radio", name="Queue")).to_be_checked()
    env.tools.gate.open()
    await tab.shows(1)
    await expect(tab.page.locator(".steered .bubble")).to_have_text("rather look elsewhere")
    await tab.send("tell me a story")
    await gate.until_arrived(1)
    await tab.page.get_by_role("radio", name="Interrupt").check()
    await tab.send("no, the time")
    await tab.shows(3)
    assert [turn["status"] for turn in await tab.shown_turns()] == ["completed", "cancelled", "completed"]
    await tab.shows_the_transcript()


async def test_api_5_ses_9_a_failed_turn_shows_its_partial_text_the_error_and_a_retry(
    tab: Tab, env: Environment
) -> None:
    broken_off = [Delta("respond", "On and on"), ModelError("auth", "the key was refused")]
    env.vendor.script = [broken_off, says("Now it works.")]
    await tab.open()
    await tab.send("Hello?")
    await expect(tab.page.locator(".turn-error p")).to_contain_text("the key was refused")
    await expect(tab.turns.locator(".step .prose")).to_have_text("On and on")
    await expect(tab.turns.locator(".interrupted")).to_have_text("Interrupted here")
    await tab.button("Retry").click()
    await tab.shows(2)
    assert [turn["asked"] for turn in await tab.shown_turns()] == ["Hello?", "Hello?"]
    await expect(tab.turns.last.locator(".prose")).to_have_text("Now it works.")
    await tab.shows_the_transcript()


async def test_api_5_the_composer_handles_arrow_up_shift_enter_and_input_methods(tab: Tab, env: Environment) -> None:
    await tab.open()
    await tab.text.fill("にほん")
    await tab.text.evaluate(
        """(text) => text.dispatchEvent(
             new KeyboardEvent("keydown", {key: "Enter", isComposing: true, bubbles: true, cancelable: true}))"""
    )
    await expect(tab.text).to_have_value("にほん")
    assert not tab.session
    await tab.send("first words")
    await tab.shows(1)
    await tab.text.press("ArrowUp")
    await expect(tab.text).to_have_value("first words")
    await tab.text.press("Shift+Enter")
    await tab.text.press_sequentially("and more")
    await expect(tab.text).to_have_value("first words\nand more")
    await tab.text.press("Enter")
    await tab.shows(2)
    await expect(tab.text).to_have_value("")


async def test_api_5_a_retry_replaces_the_partial_text_of_the_first_attempt(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [
        [Delta("respond", "The first try"), gate, ModelError("overloaded", "busy", retry_after=0.0)],
        [Delta("respond", "The second"), (second := Gate(is_open=False)), says("The second one.")],
    ]
    await tab.open()
    await tab.send("Go")
    await expect(tab.growing).to_have_text("The first try")
    gate.open()
    await expect(tab.growing).to_have_text("The second")
    second.open()
    await tab.shows(1)
    await expect(tab.answers).to_have_text("The second one.")
