"""Who calls the gateway, what the caller may do, and until when (API-4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.models.http_responses import ROLES, Role
from turnkeeper.models.ids import WorkflowId, workflow_id

__all__ = ["LOCAL", "LOCAL_IDENTITY", "ROLES", "Caller", "Identity", "Role", "caller_of"]


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

    def workflow_id(self, session_id: str) -> WorkflowId:
        """Return the workflow id of the session that the caller means: always one of the caller's own tenant.

        >>> LOCAL.workflow_id("chat-1"), Caller("key:1", "acme", None, "writer").workflow_id("chat-1")
        ('chat-1', 'acme:chat-1')
        """
        return workflow_id(session_id, tenant=self.tenant)


@dataclass(frozen=True)
class Identity:
    """A caller, and what ends the caller's credential."""

    caller: Caller
    key_id: str | None = None
    """The key, which can be revoked; None: a token, or no authentication."""
    login: str | None = None
    """The digest of the browser's login, which can be ended; None: the request has its credential itself."""
    expires_at: float | None = None
    """From when on the credential is refused, in seconds since 1970; None: it does not expire."""


LOCAL = Caller("local", "", None, "admin")
"""Everyone who reaches a gateway without authentication."""

LOCAL_IDENTITY = Identity(LOCAL)


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """Return who sends the request of an ASGI `scope`; `None` on a route that asks nobody for a credential."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    return caller
