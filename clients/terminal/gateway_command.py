"""A command of the terminal that asks the gateway: its errors, its exit codes and its output."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnkeeper.clients.python.errors import (
    GatewayError,
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
)
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible
from turnkeeper.clients.terminal.one_shot import FAILED, INTERRUPTED, UNREACHABLE
from turnkeeper.models.command_line import command_line
from turnkeeper.models.wire import Frozen


@dataclass(frozen=True)
class GatewayCommand:
    """A command for the gateway at `url`.

    `url_option` is the `--url` that the user passed; printed commands repeat it.
    """

    url: str
    url_option: str | None = None
    as_json: bool = False

    def run(self, verb: Callable[[GatewayClient], Awaitable[int]]) -> int:
        """Return the exit code of `verb`; an error is printed and has its own."""

        async def run() -> int:
            async with GatewayClient(self.url) as gateway:
                return await verb(gateway)

        try:
            return asyncio.run(run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            return INTERRUPTED
        except GatewayUnreachableError as error:
            hint = "" if self.url_option else f" {texts.START_GATEWAY.format(command=command_line('up'))}"
            say(f"{error}.{hint}")
            return UNREACHABLE
        except GatewayProblemError as error:
            self.report(error)
            return FAILED
        except GatewayError as error:
            say(str(error))
            return UNREACHABLE if isinstance(error, GatewayUnreadableError) else FAILED

    def report(self, error: GatewayProblemError) -> None:
        """Print what is wrong."""
        say(legible(str(error)))

    def print_answer(self, answer: Frozen, text: str) -> None:
        """Print an answer as `text`, or with `--json` as a line of JSON."""
        if self.as_json:
            print(json.dumps(answer.model_dump(mode="json"), separators=(",", ":")), flush=True)
        else:
            print(legible(text), flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
