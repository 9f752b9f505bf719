"""What each operation of the API and each tool of MCP changes: one table, from which the audit is written (API-4).

A request is read before it is validated, so nothing of it is copied but ids that are ids and names of our own fields.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from turnkeeper.api.bodies import ConfigureBody, HistoryBody, LimitsBody, StartSession
from turnkeeper.api.prompts.prompt_sender import chat_session_id
from turnkeeper.api.tasks.new_task import new_task_id
from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.http_responses import AuditAction
from turnkeeper.models.ids import CALL_ID_PATTERN, DEFAULT_TENANT, is_id, session_id_of
from turnkeeper.models.session.task import CreateTask
from turnkeeper.models.transcript.trajectory import ApprovalDecision

MAX_CHANGES = 100
"""Of one request: a message of the AI SDK may have many decisions."""

START = "start"
"""The field of a prompt that starts its session if there is none."""

DECISIONS: dict[ApprovalDecision, AuditAction] = {
    "approve": "approve",
    "reject": "reject",
    "allow_for_session": "allow",
}

PROMPTING: frozenset[AuditAction] = frozenset({"prompt", "retry", "message_task"})
"""Each sends a prompt to a session."""

_CALL_ID = re.compile(CALL_ID_PATTERN[1:-1])
_NESTED: dict[str, type[BaseModel]] = {"limits": LimitsBody, "history": HistoryBody}


@dataclass(frozen=True)
class Change:
    """A change that a request asks for, as far as the request says. `fields`: the names of what it sets."""

    action: AuditAction
    session_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def may_start_session(self) -> bool:
        return self.action in ("start", "import", "create_task") or START in self.fields


@dataclass(frozen=True)
class RequestParts:
    """A request that was not validated: any value can be of any type."""

    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def session_id(self) -> str | None:
        return _id(self.path.get("id"))

    @property
    def prompt_id(self) -> str | None:
        return _id(self.body.get("id")) or _id(self.headers.get("idempotency-key"))


def _id(value: object) -> str | None:
    return cast(str, value) if is_id(value) else None


def _field_names(model: type[BaseModel], body: object, *, without: Sequence[str] = ()) -> Iterator[str]:
    """Yield the names of the model's fields that are in `body`, with those of limits and history."""
    values = body if isinstance(body, Mapping) else {}
    for name in model.model_fields:
        value = values.get(name)
        if value is None or name in without:
            continue
        nested = list(_field_names(_NESTED[name], value)) if name in _NESTED else []
        yield from (f"{name}.{one}" for one in nested) if nested else (name,)


def _start_changes(parts: RequestParts) -> list[Change]:
    session_id = _id(parts.body.get("id"))
    fields = tuple(_field_names(StartSession, parts.body, without=("id", "prompt", "attachments")))
    has_prompt = parts.body.get("prompt") is not None or bool(parts.body.get("attachments"))
    prompt = [Change("prompt", session_id)] if has_prompt else []
    return [Change("start", session_id, fields=fields), *prompt]


def _prompt_changes(parts: RequestParts) -> list[Change]:
    starts = str(parts.query.get("start", "")).lower() in ("true", "1", "yes", "on", "t", "y")
    return [Change("prompt", parts.session_id, parts.prompt_id, fields=(START,) if starts else ())]


def _chat_changes(parts: RequestParts) -> list[Change]:
    user, message_id = parts.body.get("user_name"), parts.prompt_id
    session_id = _id(parts.body.get("workflow_id"))
    is_user = user is None or (isinstance(user, str) and not count_unencodable(user))
    if session_id is None and message_id and is_user:
        session_id = chat_session_id(message_id, user=user)
    return [Change("prompt", session_id, message_id, fields=(START,))]


def _on_turn(action: AuditAction) -> Callable[[RequestParts], list[Change]]:
    return lambda parts: [Change(action, parts.session_id, _id(parts.body.get("message_id")))]


def _on_session(action: AuditAction) -> Callable[[RequestParts], list[Change]]:
    return lambda parts: [Change(action, parts.session_id)]


def _end_changes(parts: RequestParts) -> list[Change]:
    return [Change("end", parts.session_id, fields=("discard_queue",) if parts.body.get("discard_queue") else ())]


def _configure_changes(parts: RequestParts) -> list[Change]:
    return [Change("configure", parts.session_id, fields=tuple(_field_names(ConfigureBody, parts.body)))]


def _import_changes(parts: RequestParts) -> list[Change]:
    return [Change("import", _id(parts.query.get("id")))]


def _fork_changes(parts: RequestParts) -> list[Change]:
    """Return that the session in the path is forked, and that another one starts."""
    fork = Change("fork", parts.session_id, _id(parts.body.get("turn")))
    return [fork, Change("start", _id(parts.body.get("id")))]


def _withdraw_changes(parts: RequestParts) -> list[Change]:
    return [Change("withdraw", parts.session_id, _id(parts.path.get("message_id")))]


def _decision_changes(parts: RequestParts) -> list[Change]:
    action = DECISIONS.get(cast(ApprovalDecision, str(parts.body.get("decision"))))
    return [decision(action, parts.session_id, parts.path.get("call_id"))] if action else []


def decision(action: AuditAction, session_id: str | None, call_id: object) -> Change:
    is_call_id = isinstance(call_id, str) and _CALL_ID.fullmatch(call_id)
    return Change(action, session_id, call_id=cast(str, call_id) if is_call_id else None)


def _create_task_changes(parts: RequestParts) -> list[Change]:
    return [_new_task(parts.body)]


def _new_task(body: Mapping[str, Any]) -> Change:
    key, parent = body.get("idempotency_key"), body.get("parent")
    is_repeatable = is_id(key) and (parent is None or is_id(parent))
    task = CreateTask.model_construct(description="", idempotency_key=key, parent=parent) if is_repeatable else None
    fields = tuple(_field_names(CreateTask, body, without=("description", "idempotency_key")))
    # The id is the same in every tenant.
    task_id = session_id_of(new_task_id(task, tenant=DEFAULT_TENANT)) if task else None
    return Change("create_task", task_id, fields=fields)


def _message_task_changes(parts: RequestParts) -> list[Change]:
    return [Change("message_task", parts.session_id, _id(parts.body.get("id")))]


def _ai_sdk_changes(parts: RequestParts) -> list[Change]:
    """Return what the last message of a chat changes: a prompt, another try, or decisions."""
    session_id, messages = _id(parts.body.get("id")), parts.body.get("messages")
    in_list = messages[-1] if isinstance(messages, list) and messages else None
    last = parts.body.get("message") or in_list
    message = last if isinstance(last, Mapping) else {}
    if parts.body.get("trigger") == "regenerate-message":
        return [Change("retry", session_id, _id(message.get("id")))]
    if message.get("role") == "assistant":
        return list(_ai_sdk_decisions(session_id, message.get("parts")))[:MAX_CHANGES]
    return [Change("prompt", session_id, _id(message.get("id")), fields=(START,))]


def _ai_sdk_decisions(session_id: str | None, parts: object) -> Iterator[Change]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping) and part.get("state") == "approval-responded":
            approval = part.get("approval")
            if isinstance(approval, Mapping) and not approval.get("isAutomatic"):
                yield decision("approve" if approval.get("approved") else "reject", session_id, part.get("toolCallId"))


OPERATIONS: dict[str, Callable[[RequestParts], list[Change]]] = {
    "start_session": _start_changes,
    "configure_session": _configure_changes,
    "cancel_turn": _on_turn("cancel"),
    "end_session": _end_changes,
    "delete_session": _on_session("delete"),
    "import_session": _import_changes,
    "fork_session": _fork_changes,
    "send_prompt": _prompt_changes,
    "upload_attachment": _on_session("upload"),
    "retry_turn": _on_turn("retry"),
    "chat": _chat_changes,
    "withdraw_prompt": _withdraw_changes,
    "resolve_approval": _decision_changes,
    "create_task": _create_task_changes,
    "message_task": _message_task_changes,
    "cancel_task": _on_session("cancel_task"),
    "ai_sdk_chat": _ai_sdk_changes,
}
"""What each operation of the API changes, by its id."""

UNREAD = frozenset({"import_session"})
"""Operations whose bodies are too large to be read for their entry."""

UNCHANGING = frozenset({"preview_task", "render_markdown", "log_in", "log_out"})
"""Operations that change nothing although they are no GET."""


TOOLS: dict[str, Callable[[Mapping[str, Any]], list[Change]]] = {
    "create_task": lambda arguments: [_new_task(arguments)],
    "message_task": lambda arguments: [
        Change("message_task", _id(arguments.get("task_id")), _id(arguments.get("id"))),
    ],
    "cancel_task": lambda arguments: [Change("cancel_task", _id(arguments.get("task_id")))],
    "send_prompt": lambda arguments: [
        Change(
            "prompt",
            _id(arguments.get("workflow_id")),
            _id(arguments.get("id")),
            fields=(START,) if arguments.get("start") else (),
        )
    ],
}
"""What each tool of MCP changes, by its name; the others only read."""
