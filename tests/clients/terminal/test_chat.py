"""`turnkeeper chat` as a person uses it: API-6."""

import re
from pathlib import Path
from uuid import uuid4

from tests.clients.terminal.conftest import Chat, plain_env
from tests.clients.terminal.terminal import Terminal, terminal_with
from tests.harness import Environment, Gate, asks, says
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.conversation import ToolResult


def closed() -> Gate:
    return Gate(is_open=False)


def session_in(terminal: Terminal) -> str:
    match = re.search(r"Turnkeeper · (\S+)", terminal.text)
    assert match is not None
    return match[1]


def is_idle(terminal: Terminal) -> bool:
    return " · ready" in terminal.on_screen


async def test_api_6_a_conversation_with_a_tool_call_is_printed(chat: Chat, env: Environment) -> None:
    env.tools.run = slow_look
    env.vendor.script = [asks(("look", {"at": "notes.txt"}), text="I will look."), says("It says **hello**.")]
    async with chat() as terminal:
        assert "Resume with: turnkeeper chat --session chat-" in terminal.text
        terminal.type("read notes.txt")
        await terminal.until("turn 1 ·")
        printed = [line for line in terminal.lines[4:] if line]
    assert printed[:4] == ["› read notes.txt", "  I will look.", '  ⚒ look(at="notes.txt") ✓ 12 ms', "  It says hello."]
    assert printed[4].startswith("  turn 1 · ")


async def slow_look(invocation: object) -> ToolResult:
    return ToolResult(outcome="seen", content="hello", duration_ms=12)


async def test_api_6_text_is_shown_while_it_is_streamed_and_printed_once_at_the_end(
    chat: Chat, env: Environment
) -> None:
    first, second = closed(), closed()
    env.vendor.script = [
        [
            Delta("think", "Let me see."),
            Delta("respond", "The begin"),
            first,
            Delta("respond", "ning, and"),
            second,
            says("The beginning, and the end."),
        ]
    ]
    async with chat() as terminal:
        terminal.type("tell me")
        await terminal.until("The begin")
        first.open()
        await terminal.until("The beginning, and")
        assert "the end" not in terminal.text
        second.open()
        await terminal.until("turn 1 ·")
        assert terminal.text.count("The beginning") == 1
        assert "The beginning, and the end." in terminal.text


async def test_api_6_the_partial_text_of_a_failed_attempt_is_removed(chat: Chat, env: Environment) -> None:
    fails, goes_on = closed(), closed()
    env.vendor.script = [
        [Delta("respond", "A false start"), fails, ModelError("overloaded", "busy", retry_after=0.01)],
        [Delta("respond", "A true"), goes_on, says("A true answer.")],
    ]
    async with chat() as terminal:
        terminal.type("go")
        await terminal.until("A false start")
        fails.open()
        await terminal.until("A true")
        assert "A false start" not in terminal.text
        goes_on.open()
        await terminal.until("A true answer.")


async def test_api_6_prompts_typed_during_an_answer_are_shown_as_queued(chat: Chat, env: Environment) -> None:
    gate = closed()
    env.vendor.script = [
        [Delta("respond", "Half an ans"), gate, says("Half an answer.")],
        says("The second."),
        says("3"),
    ]
    async with chat() as terminal:
        terminal.type("first")
        await terminal.until("Half an ans")
        terminal.type("second question")
        terminal.type("third question")
        await terminal.until("queued 2  third question")
        assert "queued 1  second question" in terminal.on_screen
        assert "› second question" not in terminal.text
        terminal.type("/queue")
        await terminal.until("2  third question")
        terminal.type("/remove 2")
        await terminal.until_gone("queued 2")
        terminal.type("not yet sent", enter=False)
        gate.open()
        await terminal.until("turn 2 ·")
        assert "› not yet sent" in terminal.on_screen
        assert terminal.text.index("Half an answer.") < terminal.text.index("› second question")
        assert "› third question" not in terminal.text


async def test_api_6_ctrl_c_stops_the_turn_and_a_second_one_exits_with_a_resume_command(
    chat: Chat, env: Environment
) -> None:
    gate = closed()
    env.vendor.script = [[Delta("respond", "An endless"), gate, says("never")]]
    async with chat() as terminal:
        terminal.type("go on for ever")
        await terminal.until("An endless")
        terminal.press("c-c")
        await terminal.until("Stopping this turn")
        await terminal.until("✗ You stopped this answer.")
        await terminal.until(is_idle)
        assert terminal.text.index("An endless") < terminal.text.index("(stopped here)"), "SES-9: what was written"
        terminal.press("c-c")
        assert await terminal.exit_code() == 0
        session = session_in(terminal)
        await terminal.until(f"The session goes on. Resume with: turnkeeper chat --session {session}")


async def test_api_6_ctrl_c_during_another_users_turn_only_exits(
    chat: Chat, env: Environment, gateway: GatewayClient
) -> None:
    gate = closed()
    env.vendor.script = [[Delta("respond", "Slowly"), gate, says("Slowly done.")]]
    session = f"t-{uuid4()}"
    await gateway.start(session, prompt="theirs")
    async with chat("--session", session) as terminal:
        await terminal.until("Slowly")
        terminal.press("escape")
        await terminal.until("This turn was not started here. Use /stop to stop it.")
        terminal.type("half a line", enter=False)
        await terminal.until("half a line")
        terminal.press("c-c")
        await terminal.until_gone("half a line")
        terminal.press("c-c")
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on. Resume with:")
    gate.open()
    (turn,) = (await gateway.updates(session, wait=10)).new_messages
    while not turn.is_complete:
        update = await gateway.updates(session, wait=10)
        (turn,) = update.new_messages
    assert turn.agent_message == "Slowly done."


async def test_api_6_esc_stops_your_own_turn_and_slash_stop_any_turn(
    chat: Chat, env: Environment, gateway: GatewayClient
) -> None:
    gate = closed()
    env.vendor.script = [
        [Delta("respond", "Mine"), gate, says("never")],
        [Delta("respond", "Theirs"), gate, says("no")],
    ]
    async with chat() as terminal:
        terminal.type("/help")
        await terminal.until("Esc")
        terminal.type("go on for ever")
        await terminal.until("Mine")
        terminal.press("escape")
        await terminal.until("✗ You stopped this answer.")
        await gateway.prompt(session_in(terminal), "and for ever")
        await terminal.until("Theirs")
        terminal.type("/stop")
        await terminal.until(lambda t: t.text.count("✗ You stopped this answer.") == 2)


async def test_api_6_lines_typed_before_the_prompt_appears_are_sent_one_by_one(chat: Chat) -> None:
    """U8: the terminal itself had taken Enter for a line break."""
    async with chat(is_awaited=False) as terminal:
        terminal.type("first grüße")
        terminal.type("second" + " word" * 300)
        terminal.type("/help")
        terminal.type("not yet sent", enter=False)
        await terminal.until("turn 2 ·")
        await terminal.until("remove queued prompt N")
        await terminal.until("› not yet sent")
        assert re.findall(r"^› (\w+ \w+)", terminal.text, re.MULTILINE) == ["first grüße", "second word", "not yet"]
        assert "echo: first grüße\n" in terminal.text


async def test_api_6_ctrl_d_before_the_prompt_appears_exits(chat: Chat) -> None:
    async with chat(is_awaited=False) as terminal:
        terminal.type("first")
        terminal.press("c-d")
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on.")


async def test_api_6_the_printed_commands_can_be_typed_as_they_stand(chat: Chat, tmp_path: Path) -> None:
    """U3: in a shell that does not find `turnkeeper` by its name."""
    shell = {"PATH": "/usr/bin:/bin"}
    async with chat("hello", columns=250, **shell) as terminal:
        await terminal.until("turn 1 ·")
        terminal.press("c-d")
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on. Resume with: ")
        command = terminal.text.rpartition("Resume with: ")[2].strip()
    assert command.split()[1:3] == ["chat", "--session"]
    async with terminal_with(["/bin/sh", "-c", command], env=plain_env(**shell), cwd=tmp_path, columns=250) as terminal:
        await terminal.until("echo: hello")


async def test_api_6_ctrl_c_with_nothing_to_stop_asks_for_another_one_before_exiting(chat: Chat) -> None:
    async with chat() as terminal:
        await terminal.until(is_idle)
        terminal.type("half a line", enter=False)
        await terminal.until("half a line")
        terminal.press("c-c")
        await terminal.until_gone("half a line")
        terminal.press("c-c")
        await terminal.until("Press Ctrl-C again to leave")
        terminal.type("x", enter=False)
        terminal.press("backspace")
        terminal.press("c-c")
        await terminal.until(lambda t: t.text.count("Press Ctrl-C again to leave") == 2)
        terminal.press("c-c")
        assert await terminal.exit_code() == 0


async def test_api_6_a_session_without_prompts_is_ended_on_exit(chat: Chat, gateway: GatewayClient) -> None:
    async with chat() as terminal:
        terminal.press("c-d")
        assert await terminal.exit_code() == 0
        await terminal.until("No prompts were sent, so the session was ended.")
        session = session_in(terminal)
    assert (await gateway.updates(session, wait=10)).status == "ended"


async def test_api_6_a_resumed_session_shows_its_last_turns_and_continues(chat: Chat, gateway: GatewayClient) -> None:
    session = f"t-{uuid4()}"
    await gateway.start(session)
    for number in range(1, 6):
        await gateway.ask(session, f"question {number}", wait=20)
    async with chat("--session", session) as terminal:
        await terminal.until("turn 5 ·")
        assert "… 2 earlier turns" in terminal.text
        assert "question 2" not in terminal.text
        assert terminal.text.count("echo: question 3") == 1
        terminal.type("question 6")
        await terminal.until("turn 6 ·")
        assert terminal.text.count("echo: question 5") == 1
        terminal.type("/details 1")
        await terminal.until("turn 1, details")
        await terminal.until("› question 1")


async def test_api_6_two_terminals_on_one_session_stay_in_sync(chat: Chat, env: Environment) -> None:
    gate = closed()
    env.vendor.script = [says("one"), [Delta("respond", "Slowly"), gate, says("Slowly done.")], says("three")]
    async with chat() as left:
        left.type("from the left")
        await left.until("turn 1 ·")
        async with chat("--session", session_in(left)) as right:
            await right.until("› from the left")
            right.type("from the right")
            await left.until("Slowly")
            left.type("waits")
            await right.until("queued 1  waits")
            gate.open()
            for terminal in (left, right):
                await terminal.until("turn 3 ·")
                conversation = terminal.text[terminal.text.index("› from the left") :]
                prompts = re.findall(r"^› (.+)$", conversation, re.MULTILINE)
                assert prompts == ["from the left", "from the right", "waits"]
                assert terminal.text.count("Slowly done.") == 1


async def test_api_6_a_turn_can_be_steered_interrupted_and_retried(chat: Chat, env: Environment) -> None:
    env.vendor.gate.close()
    env.vendor.script = [asks(("look", {})), says("Steered."), says("never"), says("Quick.")]
    async with chat() as terminal:
        terminal.type("begin")
        await env.vendor.gate.until_arrived(1)
        terminal.type("/steer look left first")
        await terminal.until("joins this turn  look left first")
        env.vendor.gate.open()
        await terminal.until("↳ look left first")
        await terminal.until("turn 1 ·")
        env.vendor.gate.close()
        terminal.type("a long one")
        await env.vendor.gate.until_arrived(3)
        terminal.type("/interrupt quick")
        await terminal.until("✗ Stopped because you sent a new prompt.")
        env.vendor.gate.open()
        await terminal.until("turn 3 ·")


async def test_api_6_slash_retry_sends_the_last_failed_turn_again(chat: Chat, env: Environment) -> None:
    env.vendor.script = [ModelError("bad_request", "no such parameter"), says("Now it works.")]
    async with chat() as terminal:
        terminal.type("try this")
        await terminal.until("turn 1 ·")
        assert "✗ " in terminal.text
        terminal.type("/retry")
        await terminal.until("Now it works.")
        assert terminal.text.count("› try this") == 2


async def test_api_6_commands_report_what_they_did_and_unknown_ones_what_exists(
    chat: Chat, gateway: GatewayClient
) -> None:
    async with chat() as terminal:
        await terminal.until(is_idle)
        terminal.type("/title A walk")
        await terminal.until("The title is now 'A walk'.")
        assert (await gateway.describe(session_in(terminal))).title == "A walk"
        terminal.type("/model offline:other")
        await terminal.until("The model is offline:other from the next turn on.")
        terminal.type("/open")
        await terminal.until(f"{gateway.url}/?session={session_in(terminal)}")
        terminal.type("/dance")
        await terminal.until("Unknown command /dance")
        await terminal.until("› /dance")
        terminal.press("c-c")
        terminal.type("/stop")
        await terminal.until("No turn is running.")
        terminal.press("c-c")
        terminal.type("//etc is a folder")
        await terminal.until("echo: /etc is a folder")
        terminal.type("/help")
        await terminal.until("remove queued prompt N")
        terminal.type("/quit")
        assert await terminal.exit_code() == 0


async def test_api_6_invalid_input_gets_an_error_and_the_chat_continues(chat: Chat) -> None:
    async with chat() as terminal:
        await terminal.until(is_idle)
        terminal.type("/title " + "x" * 400)
        await terminal.until("Not done: title: may have at most 120 characters.")
        terminal.type_bytes(b"ol\xe9!\r")
        await terminal.until("echo: ol")


async def test_api_6_a_rejected_prompt_is_printed_even_if_something_new_was_typed(
    chat: Chat, env: Environment, gateway: GatewayClient
) -> None:
    env.vendor.gate.close()
    async with chat("slow") as terminal:
        await env.vendor.gate.until_arrived(1)
        await gateway.end(session_in(terminal))
        await terminal.until(" · ending")
        terminal.type("my long precious prompt\rz", enter=False)
        await terminal.until("The session is ending and takes no more prompts (ended by the user).")
        await terminal.until("  my long precious prompt")
        assert "› z" in terminal.on_screen


async def test_api_6_a_message_on_the_command_line_is_sent_and_the_chat_stays_open(chat: Chat) -> None:
    async with chat("hello there") as terminal:
        await terminal.until("echo: hello there")
        terminal.type("and again")
        await terminal.until("echo: and again")


async def test_api_6_the_chat_exits_when_the_session_is_ended_elsewhere(chat: Chat, gateway: GatewayClient) -> None:
    async with chat("hello") as terminal:
        await terminal.until("turn 1 ·")
        await gateway.end(session_in(terminal))
        await terminal.until("The session has ended and is read-only.")
        assert await terminal.exit_code() == 0
        assert "Resume with" not in terminal.text[terminal.text.index("has ended") :]


async def test_api_6_an_ended_session_can_still_be_read(chat: Chat, gateway: GatewayClient) -> None:
    session = f"t-{uuid4()}"
    await gateway.start(session)
    await gateway.ask(session, "the last words", wait=20)
    await gateway.end(session)
    async with chat("--session", session) as terminal:
        await terminal.until("The session has ended and is read-only.")
        assert await terminal.exit_code() == 0
        assert terminal.text.count("echo: the last words") == 1


async def test_api_6_escape_sequences_in_texts_cannot_control_the_terminal(chat: Chat, env: Environment) -> None:
    env.vendor.script = [
        asks(("look", {"at": "\x1b]0;owned\x07\u202etxt"}), text="\x1b[2J\x1b[Hwiped"),
        says("\x9bok\x1b[31m"),
    ]
    async with chat() as terminal:
        terminal.type("go")
        await terminal.until("turn 1 ·")
        assert "Turnkeeper" in terminal.text
        assert "␛[2J␛[Hwiped" in terminal.text
        assert terminal.screen.title == ""
        assert b"\x1b]0;" not in b"".join(chunk for _, chunk in terminal.recording)


async def test_api_6_no_color_disables_colours(chat: Chat) -> None:
    async with chat(NO_COLOR="1") as terminal:
        terminal.type("hello")
        await terminal.until("turn 1 ·")
        output = b"".join(chunk for _, chunk in terminal.recording)
    colours = re.findall(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|38|48)(?:;\d+)*m", output)
    assert colours == []


async def test_api_6_an_ascii_terminal_gets_only_ascii(chat: Chat, env: Environment) -> None:
    env.vendor.script = [asks(("look", {"at": "x"})), says("• Grüße …")]
    async with chat(LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0") as terminal:
        terminal.type("hello")
        await terminal.until("turn 1 -")
        assert '* look(at="x") ok' in terminal.text
        assert "* Gr??e ..." in terminal.text
        assert terminal.text.isascii()


async def test_api_6_a_narrow_terminal_stays_readable_when_it_is_resized(chat: Chat, env: Environment) -> None:
    gate = closed()
    env.vendor.script = [[Delta("respond", "word " * 30), gate, says("word " * 30)]]
    async with chat(columns=40, rows=16) as terminal:
        terminal.type("many words")
        await terminal.until("word word")
        terminal.resize(columns=60, rows=20)
        gate.open()
        await terminal.until("turn 1 ·")
        assert max(map(len, terminal.lines)) <= 60
