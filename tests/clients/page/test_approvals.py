"""Deciding on tool calls, in the card that shows them (API-5, AGT-8)."""

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.clients.page.test_sessions import started
from tests.harness import Environment, asks, says

UNSEEN = "\u202eolleh\u202c \u200bü🙂\u2028\x85\U000e0041\u3164"
UNSEEN_SHOWN = r"\u202eolleh\u202c \u200bü🙂\u2028\u0085\udb40\udc41\u3164"
"""Turned around, hidden, or on a line of its own; and how JSON escapes it."""

PAY = ("pay", {"to": "Registrar", "amount": 12})


async def a_session_that_asks(tab: Tab, env: Environment) -> None:
    """A session that may pay only when it has asked."""
    await tab.open(await started(tab.url, tool_policy={"pay": "ask"}))


async def test_api_5_a_call_is_approved_in_its_card_with_its_arguments_in_sight(tab: Tab, env: Environment) -> None:
    await a_session_that_asks(tab, env)
    env.vendor.script = [asks(PAY), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.state).to_have_text("A tool call needs your approval.")
    await expect(tab.page).to_have_title("(!) Pay · Turnkeeper")
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_be_visible()
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_contain_text('"to": "Registrar"')
    assert env.tools.calls == []
    await tab.button("Approve").click()
    await tab.shows(1)
    assert [call.name for call in env.tools.calls] == ["pay"]
    await expect(tab.page.locator(".approval")).to_have_count(0)
    await expect(tab.tools).to_contain_text("Approved")
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_be_hidden()  # a line again, like other calls
    await expect(tab.tools.locator("summary")).to_be_focused()
    await tab.shows_the_transcript()


async def test_api_5_a_call_is_rejected_with_a_reason_that_the_model_is_told(tab: Tab, env: Environment) -> None:
    await a_session_that_asks(tab, env)
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


async def test_api_5_a_tool_that_is_allowed_for_the_session_is_not_asked_about_again(
    tab: Tab, env: Environment
) -> None:
    await a_session_that_asks(tab, env)
    env.vendor.script = [asks(PAY), says("Paid."), asks(PAY), says("Paid again.")]
    await tab.send("Pay")
    await tab.button("Allow for this session").click()
    await tab.shows(1)
    await tab.send("Pay again")
    await tab.shows(2)
    assert len(env.tools.calls) == 2


async def test_api_5_what_is_written_in_one_card_survives_the_decision_in_another(tab: Tab, env: Environment) -> None:
    await a_session_that_asks(tab, env)
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


async def test_api_5_what_is_approved_is_what_is_read_whatever_turns_text_around_or_hides_it(
    tab: Tab, env: Environment
) -> None:
    await a_session_that_asks(tab, env)
    env.vendor.script = [asks(("pay", {"to": UNSEEN}), ("pay", {"to": UNSEEN * 2_000})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.page.locator(".approval")).to_have_count(2)
    await expect(tab.tools.first.locator(".tool-gist")).to_have_text(f"to: {UNSEEN_SHOWN}", use_inner_text=True)
    arguments = tab.tools.get_by_label("Arguments", exact=True)
    await expect(arguments.first).to_have_text(f'{{\n  "to": "{UNSEEN_SHOWN}"\n}}', use_inner_text=True)
    await expect(arguments.last).to_contain_text(UNSEEN_SHOWN)
    assert not set(UNSEEN) & set(await arguments.last.text_content() or "") - set("hello ü🙂")


async def test_api_5_a_question_with_large_arguments_does_not_take_the_keys_from_who_writes(
    tab: Tab, env: Environment
) -> None:
    await a_session_that_asks(tab, env)
    env.vendor.script = [asks(("pay", {"to": "Registrar" * 5_000})), says("Paid.")]
    await tab.send("Pay")
    await tab.text.press_sequentially("And ")
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_contain_text("Registrar")
    await expect(tab.text).to_be_focused()


async def test_api_5_arguments_of_several_lines_are_read_as_lines_and_the_choices_stand_in_one_row_on_a_phone(
    tab: Tab, env: Environment
) -> None:
    await a_session_that_asks(tab, env)
    env.vendor.script = [asks(("pay", {"to": "Registrar", "note": "Dear all,\n\tamount: 1\nYours"})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.tools.get_by_label("Arguments", exact=True)).to_have_text(
        'to: "Registrar"\nnote:\n    Dear all,\n    \tamount: 1\n    Yours', use_inner_text=True
    )
    for width in (360, 390):
        await tab.emulate(viewport={"width": width, "height": 800})
        boxes = [await tab.button(name).bounding_box() for name in ("Approve", "Allow for this session", "Reject…")]
        assert len({box["y"] for box in boxes if box}) == 1
