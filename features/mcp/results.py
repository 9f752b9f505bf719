"""What tools answer: results, errors, and questions to a person (AGT-8, TSK-6).

A result is a typed object, the same as JSON text for clients that read only text, and notes.

Tool calls of a session that wait for a person's decision are MCP elicitations. A call's key is a digest of its session,
its id and its arguments. A decision has that key, and counts only while this call with these arguments waits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent
from pydantic import BaseModel, JsonValue, ValidationError

from turnkeeper.api.problems import FieldError, ProblemError, problem_of
from turnkeeper.api.services import Services
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.models.http_responses import Task
from turnkeeper.models.ids import WorkflowId, session_id_of, sibling_id
from turnkeeper.models.session.approvals import PendingApproval, ResolveApproval
from turnkeeper.models.transcript.conversation import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS, Reason, Strict
from turnkeeper.stores.database.database import StoreUnavailableError


def tool_result(answer: BaseModel, *, notes: Sequence[str] = (), is_error: bool = False) -> CallToolResult:
    texts = [answer.model_dump_json(), *notes]
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=answer.model_dump(mode="json"),
        is_error=is_error,
    )


def task_result(task: Task, *, notes: Sequence[str] = ()) -> CallToolResult:
    """Return the result of a tool that starts work; an error if the work has failed."""
    return tool_result(task, notes=notes, is_error=task.status == "failed")


def error_result(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=sentence)], is_error=True)


EXPECTED = (ProblemError, RejectedError, TaskValidationError, StoreUnavailableError)
"""Errors of services that callers see. Any other is a bug."""


def arguments_error(error: ValidationError) -> ProblemError:
    """Return the problem that lists every wrong argument with reason and value."""
    details = error.errors(include_url=False, include_context=True)
    located = [{**detail, "loc": ("arguments", *detail["loc"])} for detail in details]
    return problem_of(RequestValidationError(located), is_of_task=True)


def sentence_of(error: Exception) -> str:
    """Return an error as text for a tool result, with the values of wrong arguments."""
    problem = problem_of(error, is_of_task=True).problem
    if not problem.errors:
        return problem.detail
    return "; ".join(map(_sentence_of_field, problem.errors))


def _sentence_of_field(error: FieldError) -> str:
    notes = [*filter(None, [error.error_type]), *([f"given: {error.value}"] if error.value else [])]
    return f"{error.field}: {error.reason}" + (f" ({'; '.join(notes)})" if notes else "")


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later, because only the service is unavailable."""
    return problem_of(error, is_of_task=True).problem.status in (503, 504)


def rpc_error(error: Exception) -> MCPError:
    """Return the JSON-RPC error of a request of the Tasks extension."""
    problem = problem_of(error, is_of_task=True).problem
    code = INVALID_PARAMS if problem.status in (404, 422) else INTERNAL_ERROR
    errors = [one.model_dump(exclude_none=True) for one in problem.errors or []]
    return MCPError(code, problem.detail, {"errors": errors} if errors else None)


MAX_CALLS = 50
"""Maximum of calls in one response; the others follow once these are decided."""

MAX_TEXT_CHARS = 16_000
"""Maximum characters of a call's text in a message."""

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["approve", "reject", "allow_for_session"]},
        "reason": {"type": "string", "title": "Reason (optional, sent to the model)", "maxLength": REASON_CHARS},
    },
    "required": ["decision"],
}


class ApprovalForm(Strict):
    """The content of an accepted elicitation."""

    decision: ApprovalDecision
    reason: Reason | None = None


class ElicitAnswer(BaseModel):
    """A client's answer: `decline` rejects the call; with `cancel` the call keeps waiting."""

    action: Literal["accept", "decline", "cancel"]
    content: ApprovalForm | None = None


@dataclass(frozen=True)
class AwaitingCall:
    """A waiting call, of the task's session or of a task below it."""

    workflow_id: WorkflowId
    approval: PendingApproval

    @property
    def key(self) -> str:
        parts = [self.workflow_id, self.approval.call_id, self.approval.args_digest]
        return sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def elicitation(self, *, url: str) -> dict[str, Any]:
        params = {"mode": "form", "message": self._message(url), "requestedSchema": FORM}
        return {"method": "elicitation/create", "params": params}

    def decision(self, form: ApprovalForm) -> ResolveApproval:
        return ResolveApproval(
            call_id=self.approval.call_id,
            args_digest=self.approval.args_digest,
            decision=form.decision,
            reason=form.reason or None,
        )

    def _message(self, url: str) -> str:
        question = f"Approve call {self.approval.call_id} of {session_id_of(self.workflow_id)}?"
        cut = len(self.approval.text) - MAX_TEXT_CHARS
        rest = [f"({cut:,} more characters are not shown here. All of it: {url})"] if cut > 0 else []
        return "\n".join([question, "", self.approval.text[:MAX_TEXT_CHARS], *rest])


async def awaiting_calls(services: Services, workflow_id: WorkflowId) -> list[AwaitingCall]:
    """Return the waiting calls of a session and of the tasks below it, at most `MAX_CALLS`."""
    pending = await services.approvals.pending(workflow_id)
    calls = [
        AwaitingCall(sibling_id(one.workflow_id, of=workflow_id) if one.workflow_id else workflow_id, one)
        for one in pending.approvals
    ]
    return calls[:MAX_CALLS]


def read_decisions(
    calls: list[AwaitingCall], responses: Mapping[str, JsonValue]
) -> list[tuple[AwaitingCall, ApprovalForm]]:
    """Return the decisions on waiting calls; answers with other keys are ignored.

    Raises `ValidationError` if any answer does not fit the form; then nothing is decided.
    """
    answers = [(call, ElicitAnswer.model_validate(responses[call.key])) for call in calls if call.key in responses]
    return [(call, form) for call, answer in answers if (form := _form(answer)) is not None]


def _form(answer: ElicitAnswer) -> ApprovalForm | None:
    if answer.action == "cancel":
        return None
    if answer.action == "decline":
        return ApprovalForm(decision="reject")
    return answer.content or ApprovalForm.model_validate({})
