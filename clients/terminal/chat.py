"""`turnkeeper chat`: a session in a terminal, over HTTP and nothing else.

With a terminal on both sides it is a conversation (`interactive.py`). Otherwise it is one question: what is piped in,
or given, is asked, and only the answer is printed (`one_shot.py`); or, for programs, a session is watched
(`json_lines.py`).
"""

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.errors import GatewayError, GatewayUnreachable, GatewayUnreadable
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import json_lines, texts
from turnkeeper.clients.terminal.formatting import legible, well_formed
from turnkeeper.clients.terminal.one_shot import FAILED, INTERRUPTED, UNREACHABLE, Final, Question
from turnkeeper.clients.terminal.opening import open_session, resume_command
from turnkeeper.models.command_line import command_line

SENDING_SECONDS = 60.0
"""How long what is typed is tried to be sent while the gateway is away."""


@dataclass(frozen=True)
class ChatOptions:
    """What the command was called with. `url`: where the gateway is; `url_option`: what of it one has to say again."""

    url: str
    message: str | None = None
    session: str | None = None
    url_option: str | None = None
    as_json: bool = False


def chat(options: ChatOptions) -> int:
    """Chat, and return the exit code."""
    try:
        return asyncio.run(_chat(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except GatewayUnreachable as error:
        hint = "" if options.url_option else f" {texts.START_GATEWAY.format(command=command_line('up'))}"
        return _fail(f"{error}.{hint}", UNREACHABLE)
    except GatewayError as error:
        return _fail(str(error), UNREACHABLE if isinstance(error, GatewayUnreadable) else FAILED)
    except BrokenPipeError:
        # Whoever read the answer has enough; what Python would still flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


async def _chat(options: ChatOptions) -> int:
    is_watching = options.as_json and options.message is None
    message = None if is_watching else _given_message(options)
    if message is not None and not message.strip():
        return _fail(texts.BLANK_MESSAGE, FAILED)
    is_at_a_terminal = json_lines.is_typed() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    async with GatewayClient(options.url, patience=SENDING_SECONDS) as gateway:
        if is_watching:
            return await json_lines.watch(gateway, (await open_session(gateway, options.session)).session_id)
        if is_at_a_terminal and not options.as_json:
            return await _interactive(gateway, options, message)
        if message is not None:
            return await _one_answer(gateway, options, message)
        return _fail(texts.NO_TERMINAL, FAILED)


def _given_message(options: ChatOptions) -> str | None:
    if options.message is not None:
        return well_formed(options.message)
    if json_lines.is_typed():
        return None
    return sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""


async def _interactive(gateway: GatewayClient, options: ChatOptions, message: str | None) -> int:
    from turnkeeper.clients.terminal.interactive.interactive import Interactive

    opened = await open_session(gateway, options.session)
    return await Interactive(gateway, opened, first=message, url=options.url_option).run()


async def _one_answer(gateway: GatewayClient, options: ChatOptions, message: str) -> int:
    opened = await open_session(gateway, options.session, turns=1)
    conversation = Conversation()
    if opened.page:
        conversation.open_at(opened.page)
    question = Question(gateway, opened.session_id, message, conversation)
    try:
        final = await question.ask(json_lines.write_event if options.as_json else lambda event: None)
    except asyncio.CancelledError:
        with contextlib.suppress(GatewayError):
            await question.stop()
            _say(texts.STOPPED)
        raise
    if options.as_json:
        json_lines.write_line("final", final)
    else:
        _print_answer(final)
    _explain(final, resume_command(opened.session_id, url=options.url_option))
    return final.exit_code


def _print_answer(final: Final) -> None:
    if final.answer is not None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print(legible(final.answer) if sys.stdout.isatty() else final.answer, flush=True)
    elif final.unfinished is not None:
        # Not on stdout: a script would take it for the answer.
        _say(f"{legible(final.unfinished)}\n{texts.INTERRUPTED}")


def _explain(final: Final, command: str) -> None:
    """Say on stderr what is wrong and what to do; after an answer, only to a person."""
    if final.error:
        _say(legible(final.error))
    if final.status == "needs_decision":
        _say(texts.DECIDE_WITH.format(command=command))
    elif sys.stderr.isatty():
        _say(texts.CONTINUE_WITH.format(command=command))


def _fail(reason: str, code: int) -> int:
    _say(reason)
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
