"""Who calls the gateway, and what the caller may do (API-4)."""

from dataclasses import dataclass
from typing import Literal, get_args

from starlette.requests import HTTPConnection

from turnkeeper.models.ids import WorkflowId, workflow_id

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

    def workflow_id(self, session_id: str) -> WorkflowId:
        """Return the workflow id of the session that the caller means: always one of the caller's own tenant.

        >>> LOCAL.workflow_id("chat-1"), Caller("key:1", "acme", None, "writer").workflow_id("chat-1")
        ('chat-1', 'acme:chat-1')
        """
        return workflow_id(session_id, tenant=self.tenant)


LOCAL = Caller("local", "", None, "admin")
"""Everyone who reaches a gateway without authentication."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return who sends the request, as the gateway's authentication has set it."""
    caller: Caller = getattr(request.state, "caller", LOCAL)
    return caller
