"""For whom a call runs, as a worker tells a tool's process in MCP's `_meta`: signed, so that it can be trusted (AGN-3).

    {"turnkeeper/context": "<base64url of JSON>.<base64url of its HMAC-SHA256>"}

The worker has a key for each process that it starts, and hands it over in the environment.
"""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnkeeper.activities.toolbox.workspace import Workspace
from turnkeeper.models.ids import WorkflowId, session_id_of, tenant_of
from turnkeeper.models.transcript.model_call import ToolInvocation

CONTEXT = "turnkeeper/context"
KEY_VARIABLE = "TOOL_CONTEXT_KEY"


@dataclass(frozen=True)
class CallSigner:
    """Says for whom calls run, to a server that has the same key."""

    key: str = field(repr=False)
    workspace_root: Path

    def signed_context(self, invocation: ToolInvocation, call_key: str) -> str:
        """Return what a tool's `ToolContext` has of a call, signed."""
        session_id = WorkflowId(invocation.session_id)
        workspace = Workspace.at(self.workspace_root, invocation.workspace, tenant=tenant_of(session_id))
        context = {
            "session_id": session_id_of(session_id),
            "tenant": tenant_of(session_id),
            "turn": int(invocation.call_id.partition(".")[0]),
            "call_id": call_key,
            "agent": invocation.agent,
            "user": invocation.user,
            "workspace": str(workspace.path),
        }
        return signed(context, self.key)


def signed(context: dict[str, Any], key: str) -> str:
    """Return a context with its signature.

    >>> verified(signed({"user": "anna"}, "k"), "k"), verified(signed({"user": "anna"}, "k"), "other")
    ({'user': 'anna'}, None)
    """
    content = urlsafe_b64encode(json.dumps(context, separators=(",", ":")).encode()).decode()
    return f"{content}.{_signature(content, key)}"


def verified(text: str, key: str) -> dict[str, Any] | None:
    """Return a context whose signature is right; else `None`."""
    content, _, signature = text.rpartition(".")
    if not hmac.compare_digest(signature, _signature(content, key)):
        return None
    context: dict[str, Any] = json.loads(urlsafe_b64decode(content))
    return context


def _signature(content: str, key: str) -> str:
    return urlsafe_b64encode(hmac.digest(key.encode(), content.encode(), "sha256")).decode()
