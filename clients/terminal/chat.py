"""`turnkeeper chat`: a session in a terminal, over the gateway's HTTP API.

At a terminal it is a conversation (`interactive.py`). In a pipe it sends one prompt and prints only the answer
(`one_shot.py`). For programs it prints a session's events (`json_lines.py`).
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.clients.python.attachments import read_attachment
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.errors import GatewayError, GatewayUnreachableError, GatewayUnreadableError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import json_lines, texts
from turnkeeper.clients.terminal.formatting import attachment_problem, legible, well_formed
from turnkeeper.clients.terminal.one_shot import FAILED, INTERRUPTED, UNREACHABLE, Final, OneShotPrompt
from turnkeeper.clients.terminal.opening import open_session, resume_command
from turnkeeper.models.command_line import command_line
from turnkeeper.models.transcript.attachments import Attachment

SENDING_SECONDS = 60.0
"""How long a prompt is sent again while the gateway is unreachable."""


@dataclass(frozen=True)
class ChatOptions:
    """The command's options. `url`: the gateway's address; `url_option`: `--url`, to repeat in printed commands."""

    url: str
    message: str | None = None
    session: str | None = None
    url_option: str | None = None
    as_json: bool = False
    attach: Sequence[Path] = ()
    """Files that are sent with the first prompt."""


def chat(options: ChatOptions) -> int:
    """Run the chat; return the exit code."""
    try:
        return asyncio.run(_chat(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except GatewayUnreachableError as error:
        hint = "" if options.url_option else f" {texts.START_GATEWAY.format(command=command_line('up'))}"
        return _fail(f"{error}.{hint}", UNREACHABLE)
    except GatewayError as error:
        return _fail(str(error), UNREACHABLE if isinstance(error, GatewayUnreadableError) else FAILED)
    except BrokenPipeError:
        # The reader of stdout has closed it, so Python must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


async def _chat(options: ChatOptions) -> int:
    is_watching = options.as_json and options.message is None
    message = None if is_watching else _first_message(options)
    try:
        attachments = [read_attachment(path) for path in options.attach]
    except (OSError, ValueError) as error:
        return _fail(texts.NOT_ATTACHED.format(reason=attachment_problem(error)), FAILED)
    if message is not None and not message.strip() and not attachments:
        return _fail(texts.BLANK_MESSAGE, FAILED)
    is_at_a_terminal = json_lines.is_typed() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    async with GatewayClient(options.url, patience=SENDING_SECONDS) as gateway:
        if is_watching:
            return await json_lines.watch(gateway, (await open_session(gateway, options.session)).session_id)
        if is_at_a_terminal and not options.as_json:
            return await _interactive(gateway, options, message, attachments)
        if message is not None:
            return await _one_answer(gateway, options, message, attachments)
        return _fail(texts.NO_TERMINAL, FAILED)


def _first_message(options: ChatOptions) -> str | None:
    if options.message is not None:
        return well_formed(options.message)
    if json_lines.is_typed():
        return None
    return sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""


async def _interactive(
    gateway: GatewayClient, options: ChatOptions, message: str | None, attachments: list[Attachment]
) -> int:
    from turnkeeper.clients.terminal.interactive.interactive import Interactive

    session = await open_session(gateway, options.session)
    interactive = Interactive(gateway, session, first=message, url=options.url_option, attachments=attachments)
    return await interactive.run()


async def _one_answer(gateway: GatewayClient, options: ChatOptions, message: str, attachments: list[Attachment]) -> int:
    session = await open_session(gateway, options.session, turns=1)
    conversation = Conversation()
    if session.page:
        conversation.open_at(session.page)
    prompt = OneShotPrompt(gateway, session.session_id, message, conversation, attachments)
    try:
        final = await prompt.run(json_lines.write_event if options.as_json else lambda event: None)
    except asyncio.CancelledError:
        with contextlib.suppress(GatewayError):
            await prompt.stop()
            _print_error(texts.STOPPED)
        raise
    if options.as_json:
        json_lines.write_line("final", final)
    else:
        _print_answer(final)
    _explain(final, resume_command(session.session_id, url=options.url_option))
    return final.exit_code


def _print_answer(final: Final) -> None:
    if final.answer is not None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print(legible(final.answer) if sys.stdout.isatty() else final.answer, flush=True)
    elif final.unfinished is not None:
        # On stderr: a script would take it for the answer.
        _print_error(f"{legible(final.unfinished)}\n{texts.INTERRUPTED}")


def _explain(final: Final, command: str) -> None:
    """Print the error and the next command on stderr; after an answer, only if stderr is a terminal."""
    if final.error:
        _print_error(legible(final.error))
    if final.status == "needs_decision":
        _print_error(texts.DECIDE_WITH.format(command=command))
    elif sys.stderr.isatty():
        _print_error(texts.RESUME_WITH.format(command=command))


def _fail(reason: str, code: int) -> int:
    _print_error(reason)
    return code


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
