"""What the OpenAPI document says beside the routes: tags, and the errors that each operation can have (API-7).

Every operation names its problems by `errors(...)`; their status, and what they mean, are written here once.
"""

from typing import Any

from turnkeeper.api.problem_texts import MEANINGS, NO_POLLING_WORKER_MEANING, ProblemName
from turnkeeper.api.problems import MEDIA_TYPE, Problem

TAGS: list[dict[str, Any]] = [
    {
        "name": "sessions",
        "description": "Start, list, describe, configure, stop and delete sessions. A session is one conversation with "
        "an agent; it lives for minutes or for months.",
    },
    {
        "name": "conversation",
        "description": "Prompts in, turns out. A turn is one prompt and the whole response to it. What is new is "
        "learned by polling, by waiting, or from a stream of events.",
    },
    {"name": "approvals", "description": "Tool calls that wait for a person's decision, and the decisions."},
    {"name": "tasks", "description": "Agents that are deployed with the conversation that led to their task."},
    {"name": "ai-sdk", "description": "The same sessions as `useChat` of Vercel's AI SDK speaks of them."},
    {"name": "page", "description": "What the chat page needs beside the rest."},
    {"name": "health", "description": "Whether the process is up, and whether it can serve."},
]

NO_POLLING_WORKER: dict[int | str, dict[str, Any]] = {503: {"model": Problem, "description": NO_POLLING_WORKER_MEANING}}

ANY: tuple[ProblemName, ...] = ("foreign-host", "foreign-origin", "invalid")
"""What every operation can answer, but for those that load balancers ask."""

SERVER: tuple[ProblemName, ...] = (*ANY, "rate-limited", "temporal-unreachable")
"""Of operations that ask Temporal."""

SESSION: tuple[ProblemName, ...] = (*SERVER, "unknown-session")
"""Of operations on one session that need no worker."""

WORKER: tuple[ProblemName, ...] = (*SESSION, "no-worker", "session-stuck")
"""Of operations on one session that a worker answers."""

PROMPT: tuple[ProblemName, ...] = (
    *SESSION,
    "too-large",
    "queue-full",
    "session-ended",
    "state-full",
    "not-waiting",
)
"""Of operations that send a prompt; `not-waiting`: its id was withdrawn or discarded before."""


def errors(*names: ProblemName) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of an operation, for its `responses`.

    >>> errors("unknown-session", "unknown-turn")[404]["description"]
    '`unknown-session`: there is no such session. `unknown-turn`: the session has no such turn.'
    """
    by_status: dict[int, list[str]] = {}
    for name, (status, meaning) in MEANINGS.items():
        if name in names:
            by_status.setdefault(status, []).append(f"`{name}`: {meaning}.")
    return {status: {"model": Problem, "description": " ".join(meanings)} for status, meanings in by_status.items()}


def with_problem_media_type(openapi: dict[str, Any]) -> dict[str, Any]:
    """Describe every error with the media type it is answered with, not with that of its route's answers."""
    for operation in (operation for path in openapi["paths"].values() for operation in path.values()):
        for status, response in operation["responses"].items():
            if status >= "400":
                response["content"] = {MEDIA_TYPE: next(iter(response["content"].values()))}
    return openapi
