"""Tool calls that wait for a person's decision, as MCP elicitations (AGT-8, TSK-6).

A call's key is a digest of its session, its id and its arguments. A decision has that key, and counts only while this
call with these arguments waits.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, JsonValue

from turnkeeper.api.services import Services
from turnkeeper.models.ids import WorkflowId, session_id_of, sibling_id
from turnkeeper.models.session.approvals import PendingApproval, ResolveApproval
from turnkeeper.models.transcript.conversation import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS, Reason, Strict

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
    calls = [AwaitingCall(_session_of(approval, workflow_id), approval) for approval in pending.approvals]
    return calls[:MAX_CALLS]


def _session_of(approval: PendingApproval, workflow_id: WorkflowId) -> WorkflowId:
    return sibling_id(approval.workflow_id, of=workflow_id) if approval.workflow_id else workflow_id


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
