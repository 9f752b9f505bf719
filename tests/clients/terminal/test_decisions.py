"""Deciding on tool calls in a terminal: API-6, AGT-8."""

import pytest

from tests.clients.terminal.conftest import Chat
from tests.harness import Environment, Gate, asks, says
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolSpec

KEYS = "[y]es once / [a]lways in this session / [n]o + reason"


def with_mail(env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail", description="Sends a mail.")]
    env.tools.run = send_mail


async def send_mail(invocation: object) -> ToolResult:
    return ToolResult(outcome="sent", duration_ms=3)


async def test_api_6_a_call_is_approved_in_the_input_line(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("It is sent.")]
    async with chat() as terminal:
        terminal.type("write to bob")
        await terminal.until(f"? send_mail — {KEYS}")
        assert 'Arguments:\n  to: "bob"' in terminal.text
        assert "needs your approval" in terminal.on_screen
        terminal.type("y")
        await terminal.until("It is sent.")
        assert '⚒ send_mail(to="bob") ✓ 3 ms' in terminal.text
        assert KEYS not in terminal.text
    assert len(env.tools.calls) == 1


async def test_api_6_a_rejection_sends_its_reason_to_the_model(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("I will not.")]
    async with chat() as terminal:
        terminal.type("write to bob")
        await terminal.until(KEYS)
        terminal.type("n, he is on holiday")
        await terminal.until("I will not.")
        assert '⚒ send_mail(to="bob") ✗ rejected: he is on holiday' in terminal.text
    assert env.tools.calls == []
    assert "he is on holiday" in env.vendor.requests[-1].messages[-1].model_dump_json()


async def test_api_6_several_pending_calls_are_decided_one_by_one(chat: Chat, env: Environment) -> None:
    with_mail(env)
    calls = [("send_mail", {"to": name}) for name in ("ann", "bob", "cay")]
    env.vendor.script = [asks(*calls), says("Two of three.")]
    async with chat() as terminal:
        terminal.type("write to all")
        await terminal.until(f"? send_mail (1 of 3) — {KEYS}")
        assert 'to: "ann"' in terminal.text
        terminal.type("yes")
        await terminal.until(f"? send_mail (2 of 3) — {KEYS}")
        assert 'to: "bob"' in terminal.text
        terminal.type("no")
        await terminal.until(f"? send_mail (3 of 3) — {KEYS}")
        assert 'to: "cay"' in terminal.text
        terminal.type("y")
        await terminal.until("Two of three.")
    assert [call.args["to"] for call in env.tools.calls] == ["ann", "cay"]


async def test_api_6_always_approves_all_further_calls_of_the_tool(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "ann"})), asks(("send_mail", {"to": "bob"})), says("Both.")]
    async with chat() as terminal:
        terminal.type("write to both")
        await terminal.until(KEYS)
        terminal.type("a")
        await terminal.until("Both.")
    assert len(env.tools.calls) == 2


async def test_api_6_any_other_input_during_an_approval_is_queued_as_a_prompt(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("Done."), says("A list.")]
    async with chat() as terminal:
        terminal.type("write to bob")
        await terminal.until(KEYS)
        terminal.type("a list of files, please")
        await terminal.until("queued 1  a list of files, please")
        assert KEYS in terminal.on_screen
        terminal.type("y")
        await terminal.until("A list.")


async def test_api_6_a_decision_applies_to_the_call_shown_when_typing_began(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "ann"})), asks(("send_mail", {"to": "bob"})), says("Done.")]
    async with chat() as mine:
        mine.type("write to both")
        await mine.until('to: "ann"')
        await mine.until(KEYS)
        session = next(line.split(" · ")[1] for line in mine.lines if line.startswith("Turnkeeper · "))
        async with chat("--session", session) as theirs:
            await theirs.until(KEYS)
            mine.type("ye", enter=False)
            await mine.until("› ye")
            theirs.type("y")
            await mine.until('to: "bob"')
            mine.type("s")
            await mine.until("The question changed while you were typing")
            assert len(env.tools.calls) == 1
            mine.press("enter")
            await mine.until("Done.")
            assert len(env.tools.calls) == 2


async def test_agt_8_a_long_call_can_be_approved_only_after_all_of_it_was_printed(chat: Chat, env: Environment) -> None:
    with_mail(env)
    lines = [f"line {number} " + "x" * 60 for number in range(2_000)]
    env.vendor.script = [asks(("send_mail", {"to": "bob", "text": "\n".join(lines)})), says("Sent.")]
    async with chat() as terminal:
        terminal.type("write a letter")
        await terminal.until("? send_mail — /show prints part 2 of 3; then it can be approved")
        terminal.type("y")
        await terminal.until("Not all of this call was shown.")
        terminal.press("c-u")
        for part in ("part 3 of 3", KEYS):
            terminal.type("/show")
            await terminal.until(part)
        assert env.tools.calls == []
        text = terminal.text
        assert all(f"| {line}" in text for line in lines)
        terminal.type("y")
        await terminal.until("Sent.")


@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}], ids=["colours", "no_colours"])
async def test_agt_8_the_rest_of_a_long_line_does_not_look_like_a_label(
    chat: Chat, env: Environment, colour: dict[str, str]
) -> None:
    with_mail(env)
    env.tools.specs = [ToolSpec(name="send_mail", description="x" * (80 - len("  | ")) + "Effect: only reads")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("Sent.")]
    async with chat("write to bob", columns=80, rows=24, **colour) as terminal:
        await terminal.until(KEYS)
        assert terminal.starts_in_bold("Effect:") == [False, True]


async def test_agt_8_a_short_call_is_never_cut_in_the_terminal(chat: Chat, env: Environment) -> None:
    with_mail(env)
    refund = {"order_id": "SHOP-2026-1009", "amount_eur": 12045.5, "to": "x"}
    env.vendor.script = [asks(("send_mail", refund), ("send_mail", refund)), says("Refunded.")]
    async with chat(columns=80, rows=24) as terminal:
        terminal.type("refund both")
        await terminal.until("(1 of 2)")
        assert "amount_eur: 12045.5" in terminal.text


@pytest.mark.parametrize(
    ("columns", "keys"), [(100, KEYS), (92, KEYS), (56, KEYS), (40, "[y]es [a]lways [n]o"), (18, "y/a/n")]
)
async def test_api_6_the_keys_of_an_approval_fit_in_one_line(
    chat: Chat, env: Environment, columns: int, keys: str
) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "bob", "about": "漢" * 30, "text": "long " * 9}))]
    async with chat("write to bob", columns=120) as terminal:
        await terminal.until(KEYS)
        terminal.resize(columns=columns, rows=32)
        await terminal.until(lambda t: any(line.strip().endswith(keys) for line in t.on_screen.split("\n")))


async def test_api_6_a_pending_approval_is_asked_again_after_resuming(chat: Chat, env: Environment) -> None:
    with_mail(env)
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("It is sent.")]
    async with chat() as terminal:
        terminal.type("write to bob")
        await terminal.until(KEYS)
        session = next(line.split(" · ")[1] for line in terminal.lines if line.startswith("Turnkeeper · "))
        terminal.press("c-d")
        assert await terminal.exit_code() == 0
    async with chat("--session", session) as again:
        await again.until(KEYS)
        again.type("y")
        await again.until("It is sent.")


async def test_api_6_a_running_call_is_shown_as_running(chat: Chat, env: Environment) -> None:
    env.tools.gate = Gate(is_open=False)
    env.vendor.script = [asks(("look", {"at": "the sea"})), says("Waves.")]
    async with chat() as terminal:
        terminal.type("look")
        await terminal.until('⚒ look(at="the sea") ')
        assert "✓" not in terminal.text
        env.tools.gate.open()
        await terminal.until('⚒ look(at="the sea") ✓ 1 ms')
        await terminal.until("Waves.")
        assert terminal.text.count("look(at=") == 1
