"""A tool call as chunks: what it is asked to do, what people said to it, what came of it.

All tools are dynamic ones to the AI SDK: which there are is known when a session runs, not when a page is written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnkeeper.api.ai_sdk.ui_chunks import (
    ApprovalDescriptor,
    LargeText,
    ToolApprovalRequestChunk,
    ToolApprovalResponseChunk,
    ToolInputAvailableChunk,
    ToolOutput,
    ToolOutputAvailableChunk,
    ToolOutputDeniedChunk,
    ToolOutputErrorChunk,
    UIMessageChunk,
)
from turnkeeper.models.transcript.trajectory import Approval, BlobRef, ToolCall, ToolResult

_APPROVAL_ID = re.compile(r"([0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}):([0-9a-f]{64})")


@dataclass(frozen=True)
class ApprovalId:
    """The call people are asked about, and the digest of the arguments they were shown."""

    call_id: str
    args_digest: str

    def __str__(self) -> str:
        return f"{self.call_id}:{self.args_digest}"


def read_approval_id(text: str) -> ApprovalId | None:
    """Return what an approval id names; `None` where it is none of ours.

    >>> read_approval_id("1.2.0:" + "0" * 64).call_id, read_approval_id("1.2.0"), read_approval_id("policy")
    ('1.2.0', None, None)
    """
    found = _APPROVAL_ID.fullmatch(text)
    return ApprovalId(found[1], found[2]) if found else None


def tool_chunks(call: ToolCall, *, session_id: str) -> Iterator[UIMessageChunk]:
    """Yield all that there is to tell of a whole call by now, in order."""
    yield ToolInputAvailableChunk(
        type="tool-input-available",
        toolCallId=call.id,
        toolName=call.name,
        input=_input(call, session_id),
        dynamic=True,
    )
    if call.approval:
        yield from _asked(call, call.approval)
    elif call.result and call.result.status == "denied":
        yield from _refused_by_policy(call, call.result)
    if call.result:
        yield _outcome(call, call.result, session_id)


def _input(call: ToolCall, session_id: str) -> object:
    """Return the arguments; where they are by reference and could not be read, where they are."""
    return {"blob": _large_text(call.args_blob, session_id)} if call.args_blob else call.args


def _asked(call: ToolCall, approval: Approval) -> Iterator[UIMessageChunk]:
    approval_id = str(ApprovalId(call.id, approval.args_digest))
    yield ToolApprovalRequestChunk(
        type="tool-approval-request",
        toolCallId=call.id,
        approvalId=approval_id,
        approvalDescriptor=ApprovalDescriptor(expiresAt=approval.expires_at.isoformat()),
    )
    if approval.decision:
        yield _decided(approval_id, approved=approval.is_given, reason=_reason(approval, call.result))


def _reason(approval: Approval, result: ToolResult | None) -> str:
    return (result.content if result else "") if approval.decision == "expired" else approval.reason or ""


def _refused_by_policy(call: ToolCall, result: ToolResult) -> Iterator[UIMessageChunk]:
    approval_id = f"{call.id}:policy"
    yield ToolApprovalRequestChunk(
        type="tool-approval-request", toolCallId=call.id, approvalId=approval_id, isAutomatic=True
    )
    yield _decided(approval_id, approved=False, reason=_told(result))


def _decided(approval_id: str, *, approved: bool, reason: str) -> ToolApprovalResponseChunk:
    response = ToolApprovalResponseChunk(type="tool-approval-response", approvalId=approval_id, approved=approved)
    if reason:
        response["reason"] = reason
    return response


def _outcome(call: ToolCall, result: ToolResult, session_id: str) -> UIMessageChunk:
    if result.status == "ok":
        output = _output(result, session_id)
        return ToolOutputAvailableChunk(type="tool-output-available", toolCallId=call.id, output=output, dynamic=True)
    if result.status == "denied":
        return ToolOutputDeniedChunk(type="tool-output-denied", toolCallId=call.id)
    return ToolOutputErrorChunk(type="tool-output-error", toolCallId=call.id, errorText=_told(result), dynamic=True)


def _told(result: ToolResult) -> str:
    return f"{result.outcome}\n{result.content}" if result.content else result.outcome


def _output(result: ToolResult, session_id: str) -> ToolOutput:
    output = ToolOutput(outcome=result.outcome, content=result.content)
    if result.duration_ms is not None:
        output["durationMs"] = result.duration_ms
    if result.blob:
        output["blob"] = _large_text(result.blob, session_id)
    if result.cut:
        output["cut"] = True
    return output


def _large_text(ref: BlobRef, session_id: str) -> LargeText:
    return LargeText(url=f"/workflow/{session_id}/blobs/{ref.hash}", chars=ref.chars)
