"""What the OpenAPI document says besides the routes: tags, and the errors of each operation (API-7).

Every operation names its problems with `errors(...)`; `problems.py` says what they mean.
"""

from typing import Any

from turnkeeper.api.http.responses import MEDIA_TYPE
from turnkeeper.api.http.streams import EVENT_STREAM
from turnkeeper.api.problems import KINDS, Problem, ProblemName

TAGS: list[dict[str, Any]] = [
    {
        "name": "sessions",
        "description": "Start, list, describe, configure, end and delete sessions. A session is one conversation with "
        "an agent; it lives for minutes or for months.",
    },
    {
        "name": "conversation",
        "description": "Prompts in, turns out. A turn is one prompt and the whole response to it. Clients get updates "
        "by polling, by waiting, or from a stream of events.",
    },
    {
        "name": "agents",
        "description": "Instructions, a model, tools and rules under one name, in versions that never change.",
    },
    {"name": "approvals", "description": "Tool calls that wait for approval, and the decisions."},
    {
        "name": "tasks",
        "description": "Agents that start with the conversation that led to their task. A task is a session too: its "
        "id works in every call of a session.",
    },
    {"name": "ai-sdk", "description": "The same sessions in the protocol of `useChat` in Vercel's AI SDK."},
    {"name": "login", "description": "Logging in to the chat page, and who one is."},
    {"name": "audit", "description": "Who changed what, and with what outcome; never the content."},
    {"name": "page", "description": "What only the chat page needs."},
    {"name": "health", "description": "Liveness, readiness, and who works."},
]

OPEN: tuple[ProblemName, ...] = ("foreign-host", "proxied", "invalid", "stopping")
"""Problems of operations that need no key."""

VERIFIED: tuple[ProblemName, ...] = ("unauthenticated", "archive-unavailable", "issuer-unavailable")
"""Of operations that verify a key or token: keys are in the archive's database."""

ANY: tuple[ProblemName, ...] = (*OPEN, *VERIFIED, "foreign-origin", "forbidden", "rate-limited")
"""Problems of every operation, except those for load balancers and for logging in."""

SERVER: tuple[ProblemName, ...] = (*ANY, "temporal-unreachable")
"""Of operations that call Temporal."""

SESSION: tuple[ProblemName, ...] = (*SERVER, "unknown-session", "no-longer-retained", "archive-unavailable")
"""Of operations on one session that need no worker to answer."""

WORKER: tuple[ProblemName, ...] = (*SESSION, "no-worker", "session-stuck")
"""Of operations on one session that need a worker."""

PROMPT: tuple[ProblemName, ...] = (
    *SESSION,
    "too-large",
    "queue-full",
    "session-ended",
)
"""Of operations that send a prompt."""


TASK: tuple[ProblemName, ...] = (
    *SERVER,
    "unknown-task",
    "no-longer-retained",
    "archive-unavailable",
    "no-worker",
    "session-stuck",
)
"""Of operations on one task that a worker answers."""


def errors(*names: ProblemName) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an operation, for its `responses`.

    >>> errors("unknown-session", "unknown-turn")[404]["description"]
    '`unknown-session`: there is no such session. `unknown-turn`: the session has no such turn.'
    """
    by_status: dict[int, list[str]] = {}
    for name in sorted(set(names), key=list(KINDS).index):
        kind = KINDS[name]
        if not kind.meaning:
            raise KeyError(f"{name} has no meaning yet")
        by_status.setdefault(kind.status, []).append(f"`{name}`: {kind.meaning}.")
    return {status: {"model": Problem, "description": " ".join(meanings)} for status, meanings in by_status.items()}


def with_media_types(openapi: dict[str, Any]) -> dict[str, Any]:
    """Return the document with problems as the content of all errors, and events as that of event streams."""
    for operation in (operation for path in openapi["paths"].values() for operation in path.values()):
        for status, response in operation["responses"].items():
            if status >= "400":
                response["content"] = {MEDIA_TYPE: next(iter(response["content"].values()))}
            elif "schema" in (stream := response.get("content", {}).get(EVENT_STREAM, {})):
                stream["x-itemSchema"] = _event_of(stream.pop("schema"))
    return openapi


def _event_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a server-sent event, as `itemSchema` of OpenAPI 3.2, which 3.1 only has as an extension."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": body["anyOf"]}}
    fields = {"data": data, "event": {"type": "string"}, "id": {"type": "string"}}
    return {"type": "object", "properties": fields, "required": ["data"]}
