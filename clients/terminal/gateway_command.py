"""A command that asks the gateway: its errors, its exit codes and its output."""

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from turnkeeper.clients.python.gateway import PATIENCE_SECONDS, GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError, GatewayUnreachableError, GatewayUnreadableError
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible
from turnkeeper.models.command_line import command_line
from turnkeeper.models.http_responses import AuditEntry, CopyReceipt
from turnkeeper.models.wire import Frozen

FAILED, UNREACHABLE, NEEDS_DECISION, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: the turn failed or was rejected; no gateway; a call needs approval; stopped by Ctrl-C."""


@dataclass(frozen=True)
class GatewayCommand:
    """A command for the gateway at `url`.

    `url_option` is the `--url` that the user passed; printed commands repeat it. `patience`: how many seconds a request
    is sent again while the gateway is unreachable.
    """

    url: str
    url_option: str | None = None
    as_json: bool = False
    patience: float = PATIENCE_SECONDS

    def run(self, action: Callable[[GatewayClient], Awaitable[int]]) -> int:
        """Return the exit code of `action`; an error is printed and has its own."""

        async def run() -> int:
            async with GatewayClient(self.url, patience=self.patience) as gateway:
                return await action(gateway)

        try:
            return asyncio.run(run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            return INTERRUPTED
        except GatewayUnreachableError as error:
            hint = "" if self.url_option else f" {texts.START_GATEWAY.format(command=command_line('up'))}"
            say(f"{error}.{hint}")
            return UNREACHABLE
        except GatewayError as error:
            say(str(error))
            return UNREACHABLE if isinstance(error, GatewayUnreadableError) else FAILED
        except BrokenPipeError:
            # The reader of stdout has closed it, so Python must not flush the rest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED

    def command_line(self, *arguments: str) -> str:
        """Return another command for the same gateway, as one types it."""
        return command_line(*arguments, *(("--url", self.url_option) if self.url_option else ()))

    def resume_command(self, session_id: str) -> str:
        """Return the command that continues a session.

        >>> GatewayCommand("http://there:80", url_option="http://there:80").resume_command("demo")
        '...turnkeeper chat --session demo --url http://there:80'
        """
        return self.command_line("chat", "--session", session_id)

    def print_result(self, result: Frozen, text: str) -> None:
        """Print a result as `text`, or with `--json` as a line of JSON."""
        print(result.model_dump_json(ensure_ascii=True) if self.as_json else legible(text), flush=True)


Command = TypeVar("Command", bound=GatewayCommand)
Arguments = ParamSpec("Arguments")


def with_gateway(
    action: Callable[Concatenate[Command, GatewayClient, Arguments], Awaitable[int]],
) -> Callable[Concatenate[Command, Arguments], int]:
    """Make a coroutine method that needs a client a method that opens one and returns the exit code."""

    @functools.wraps(action)
    def run(command: Command, /, *args: Arguments.args, **options: Arguments.kwargs) -> int:
        return command.run(lambda gateway: action(command, gateway, *args, **options))

    return run


def print_answer(answer: str) -> None:
    """Print a model's answer on stdout, exactly as it is unless that is a terminal."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print(legible(answer) if sys.stdout.isatty() else answer, flush=True)


def say(text: str) -> None:
    """Print a note or an error on stderr."""
    print(legible(text), file=sys.stderr, flush=True)


def fail(text: str) -> int:
    """Print an error; return the exit code."""
    say(text)
    return FAILED


PAGE = 1_000
"""The most entries that the gateway returns at once."""


class AuditCommand(GatewayCommand):
    """Prints changes, newest first, one per line; with `--json`, one object per line."""

    @with_gateway
    async def show(self, gateway: GatewayClient, /, *, limit: int, **filters: Any) -> int:
        """Print at most `limit` changes; `filters` are those of `GatewayClient.audit`."""
        rest, cursor = limit, None
        while rest > 0:
            page = await gateway.audit(**filters, limit=min(rest, PAGE), cursor=cursor)
            for entry in page.entries:
                self.print_result(entry, _line(entry))
            rest, cursor = rest - len(page.entries), page.next_cursor
            if cursor is None:
                break
        if rest == limit and not self.as_json:
            say(texts.NO_AUDIT)
        return 0


def _line(entry: AuditEntry) -> str:
    who = f"{entry.user} ({entry.caller})" if entry.user else entry.caller
    ids = (entry.workflow_id, entry.message_id, entry.call_id, entry.key_id)
    what = " ".join(filter(None, (entry.action, *ids, *entry.fields)))
    status = f" {entry.status}" if entry.outcome in ("refused", "failed") else ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S}  {who}  {what}  {texts.AUDIT_OUTCOME[entry.outcome]}{status}"


class CopyCommands(GatewayCommand):
    """Copies sessions to files, from files, and to other sessions. Each command returns its exit code."""

    @with_gateway
    async def export(self, gateway: GatewayClient, session_id: str, *, markdown: bool, output: Path | None) -> int:
        """Write the export to `output`, or to stdout; a file is complete or not there."""
        parts = gateway.export(session_id, markdown=markdown)
        if output is None:
            async for part in parts:
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            return 0
        partial = output.with_name(f"{output.name}.part")
        try:
            with partial.open("wb") as file:
                async for part in parts:
                    file.write(part)
            partial.replace(output)
        except OSError as error:
            return fail(texts.FILE_UNWRITABLE.format(path=output, reason=error.strerror))
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        return 0

    @with_gateway
    async def import_file(self, gateway: GatewayClient, file: Path, *, session_id: str | None) -> int:
        """Start a session from an exported document."""
        try:
            document = _read(file)
        except OSError as error:
            return fail(texts.FILE_UNREADABLE.format(path=file, reason=error.strerror))
        return self._print_copy(await gateway.import_session(document, session_id))

    @with_gateway
    async def fork(
        self, gateway: GatewayClient, session_id: str, *, turn: str | None, new_id: str | None, title: str | None
    ) -> int:
        """Start a fork; `turn` is a number or an id."""
        is_number = turn is not None and turn.isascii() and turn.isdigit()
        last_turn = int(turn) if turn and is_number else turn
        return self._print_copy(await gateway.fork(session_id, turn=last_turn, new_id=new_id, title=title))

    def _print_copy(self, copy: CopyReceipt) -> int:
        command = self.resume_command(copy.workflow_id)
        self.print_result(copy, texts.COPIED.format(session_id=copy.workflow_id, command=command))
        return 0


def _read(file: Path) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
