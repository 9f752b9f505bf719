"""Pending approvals and decisions (AGT-8)."""

from fastapi import APIRouter

from turnkeeper.api.dependencies import CallId, ChangesDep, ServicesDep, SessionId
from turnkeeper.api.http.openapi import WORKER, errors
from turnkeeper.api.roles import access
from turnkeeper.models.http_responses import ApprovalDecided
from turnkeeper.models.ids import session_id_of
from turnkeeper.models.session.approvals import Decision, PendingApprovals, ResolveApproval

router = APIRouter(tags=["approvals"])


@router.get("/workflow/{id}/approvals", operation_id="get_pending_approvals", responses=errors(*WORKER))
@access("reader")
async def get_pending_approvals(services: ServicesDep, workflow_id: SessionId) -> PendingApprovals:
    """List the tool calls that wait for approval, with their arguments and deadlines.

    Calls of the session's tasks follow its own. Decide each at the approvals of its `workflow_id`.
    """
    return await services.approvals.pending(workflow_id)


@router.post(
    "/workflow/{id}/approvals/{call_id}",
    operation_id="resolve_approval",
    responses=errors(*WORKER, "too-large", "session-ended", "unknown-call", "not-awaiting-approval", "other-arguments"),
)
@access("approver")
async def resolve_approval(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, call_id: CallId, body: Decision
) -> ApprovalDecided:
    """Approve or reject a call. Repeating a decision has no effect; a different decision afterwards is a 409.

    The call's `decided_by` is the person of the key or token, if that has one.
    """
    request = ResolveApproval(call_id=call_id, **body.model_dump())
    async with changes.begin(body.decision, workflow_id, call_id=call_id):
        receipt = await services.sessions.resolve_approval(workflow_id, request, by=changes.caller.user)
    return ApprovalDecided(workflow_id=session_id_of(workflow_id), call_id=receipt.call_id, decision=receipt.decision)
