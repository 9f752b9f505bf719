"""A command that asks the gateway: its errors, its exit codes and its output."""

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from turnkeeper.clients.python.errors import GatewayError, GatewayUnreachableError, GatewayUnreadableError
from turnkeeper.clients.python.gateway import PATIENCE_SECONDS, GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible
from turnkeeper.models.command_line import command_line
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
