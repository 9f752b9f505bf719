"""What of an open request ends when its credential ends (API-4).

A request that only reads ends at once. One that changes something is answered first, as a refusal would say that
nothing was done; only its wait and its stream end.
"""

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import anyio

_CHANGES = "changes"
_WAIT = "until_credential_ends"


@dataclass(frozen=True, eq=False)
class OpenRequest:
    """A part of a request that can be ended: all of it, or its wait."""

    scope: anyio.CancelScope
    may_end: Callable[[], bool]

    def cancel(self) -> None:
        """End it, unless it may not end now. The next check of its credential tries again."""
        if self.may_end():
            self.scope.cancel()


def let_change_finish(scope: MutableMapping[str, Any]) -> None:
    """Note in the request's ASGI `scope` that it changes something from now on."""
    scope.setdefault("state", {})[_CHANGES] = True


def changes_something(scope: Mapping[str, Any]) -> bool:
    return _CHANGES in scope["state"]


def allow_waits(scope: Mapping[str, Any], wait: Callable[[], AbstractContextManager[anyio.CancelScope]]) -> None:
    """Set what `until_credential_ends` opens in this request."""
    scope["state"][_WAIT] = wait


def until_credential_ends(scope: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Open a block for the wait of a request that has changed something: it is left once the credential has ended."""
    wait: Callable[[], AbstractContextManager[anyio.CancelScope]] = scope.get("state", {}).get(_WAIT, nullcontext)
    return wait()
