"""What the OpenAPI document says beside the routes: tags, and the errors that each operation can have (API-7).

Every operation names its problems by `errors(...)`; their status, and what they mean, are written here once.
"""

from typing import Any

from turnkeeper.api.problems import MEDIA_TYPE, Problem, ProblemName

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

_MEANINGS: dict[ProblemName, tuple[int, str]] = {
    "foreign-host": (403, "the `Host` is none of the gateway's"),
    "foreign-origin": (403, "a web page of another site sends it"),
    "unknown-session": (404, "there is no such session"),
    "unknown-prompt": (404, "the session never had such a prompt"),
    "unknown-turn": (404, "the session has no such turn"),
    "unknown-call": (404, "the session has no such tool call"),
    "unknown-blob": (404, "the session keeps no such text"),
    "session-exists": (409, "the id was used before"),
    "session-ended": (409, "the session has ended, or is ending"),
    "state-full": (409, "the session can carry no more"),
    "not-waiting": (409, "the prompt does not wait any more"),
    "not-running": (409, "no turn is running"),
    "not-failed": (409, "the turn did not fail"),
    "not-awaiting-approval": (409, "nobody is asked about the call any more"),
    "other-arguments": (409, "the call has other arguments than those that were decided on"),
    "too-large": (413, "the body is over 1 MiB, or over 10 MiB where a history is taken"),
    "invalid": (422, "something is invalid; every field is named"),
    "queue-full": (429, "too many prompts wait; see `Retry-After`"),
    "rate-limited": (429, "requests are limited at the moment; see `Retry-After`"),
    "temporal-unreachable": (503, "Temporal can't be reached"),
    "archive-unavailable": (503, "the archive can't be reached, and only it has the answer"),
    "deletion-refused": (503, "Temporal does not let workers delete workflows"),
    "stopping": (503, "this gateway is stopping"),
    "no-worker": (504, "no worker answered; what was accepted is safe"),
    "session-stuck": (504, "the session's workflow task keeps failing"),
}

NO_POLLING_WORKER: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "`temporal-unreachable`, or `no-worker`: no worker polls the task queue."}
}

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
    for name, (status, meaning) in _MEANINGS.items():
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
