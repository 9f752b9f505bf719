"""Who calls the gateway, and what the caller may do (API-4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Role = Literal["reader", "writer", "approver", "admin"]
"""Each role may do what those before it may."""

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Caller:
    """Who sends a request. What the gateway stores for a caller has the caller's id as its owner."""

    id: str
    """`local`, `key:<id of the key>` or `oidc:<subject>`."""
    tenant: str
    """Whose sessions the caller sees; empty: the default tenant."""
    user: str | None
    """The person's name, for sessions, decisions and the audit; None: unknown."""
    role: Role

    def has(self, role: Role) -> bool:
        """Return whether the caller may do what `role` may.

        >>> LOCAL.has("reader"), Caller("key:1", "", None, "writer").has("approver")
        (True, False)
        """
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Caller("local", "", None, "admin")
"""Everyone who reaches a gateway without authentication."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who sends the request of an ASGI `scope`, as the authentication has found out."""
    caller: Caller = scope.get("state", {}).get("caller", LOCAL)
    return caller
