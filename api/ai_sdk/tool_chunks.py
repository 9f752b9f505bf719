"""A tool call as chunks: its input, its approval, its result.

All tools are dynamic to the AI SDK: they are known when a session runs, not when a page is written.
"""

import re
from collections.abc import Iterator

from turnkeeper.api.ai_sdk.chunks import (
    ApprovalDescriptor,
    InputNotes,
    LargeText,
    ToolApprovalRequestChunk,
    ToolApprovalResponseChunk,
    ToolInputAvailableChunk,
    ToolMetadata,
    ToolOutput,
    ToolOutputAvailableChunk,
    ToolOutputDeniedChunk,
    ToolOutputErrorChunk,
    UIMessageChunk,
)
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.trajectory import Approval, BlobRef, ToolCall, ToolResult

MAX_SAFE_INTEGER = 2**53 - 1
"""JavaScript rounds integers beyond it."""

_APPROVAL_ID = re.compile(r"([0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}):([0-9a-f]{64})")


def read_approval_id(text: str) -> tuple[str, str] | None:
    """Return the call of an approval id, and the digest of the arguments that were shown; `None` if it is not ours.

    >>> read_approval_id("1.2.0:" + "0" * 64)[0], read_approval_id("1.2.0"), read_approval_id("policy")
    ('1.2.0', None, None)
    """
    match = _APPROVAL_ID.fullmatch(text)
    return (match[1], match[2]) if match else None


def tool_chunks(
    call: ToolCall, *, session_id: PublicId, pending: PendingApproval | None = None
) -> Iterator[UIMessageChunk]:
    """Yield the chunks of a complete call in its current state, in order; `pending`: what people decide on."""
    yield _input_chunk(call, session_id)
    if call.approval:
        yield from _approval_chunks(call, call.approval, pending)
    elif call.result and call.result.status == "denied":
        yield from _policy_chunks(call, call.result)
    if call.result:
        yield _result_chunk(call, call.result, session_id)


def _input_chunk(call: ToolCall, session_id: PublicId) -> ToolInputAvailableChunk:
    paths = list[str]()
    # Arguments that are stored by reference and could not be read are replaced with a link.
    args = call.args if call.args_blob is None else {"blob": _large_text(call.args_blob, session_id)}
    chunk = ToolInputAvailableChunk(
        type="tool-input-available",
        toolCallId=call.id,
        toolName=call.name,
        input=_without_unsafe_integers(args, "", paths),
        dynamic=True,
    )
    if paths:
        chunk["providerMetadata"] = ToolMetadata(turnkeeper=InputNotes(integersAsText=paths))
    return chunk


def _without_unsafe_integers(value: object, path: str, paths: list[str]) -> object:
    """Return the value with integers that JavaScript can't represent as strings; add their paths to `paths`.

    >>> paths = []
    >>> _without_unsafe_integers({"to": [2**53, 12]}, "", paths), paths
    ({'to': ['9007199254740992', 12]}, ['to[0]'])
    """
    if isinstance(value, dict):
        dot = "." if path else ""
        return {key: _without_unsafe_integers(inner, f"{path}{dot}{key}", paths) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_unsafe_integers(inner, f"{path}[{index}]", paths) for index, inner in enumerate(value)]
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        paths.append(path)
        return str(value)
    return value


def _approval_chunks(call: ToolCall, approval: Approval, pending: PendingApproval | None) -> Iterator[UIMessageChunk]:
    approval_id = f"{call.id}:{approval.args_digest}"
    descriptor = ApprovalDescriptor(expiresAt=approval.expires_at.isoformat())
    if pending:
        descriptor["text"], descriptor["isWhole"] = pending.text, pending.is_whole
    yield ToolApprovalRequestChunk(
        type="tool-approval-request",
        toolCallId=call.id,
        approvalId=approval_id,
        approvalDescriptor=descriptor,
    )
    if approval.decision:
        expiry_text = call.result.content if call.result and approval.decision == "expired" else None
        yield _response_chunk(approval_id, approved=approval.is_given, reason=expiry_text or approval.reason)


def _policy_chunks(call: ToolCall, result: ToolResult) -> Iterator[UIMessageChunk]:
    approval_id = f"{call.id}:policy"
    yield ToolApprovalRequestChunk(
        type="tool-approval-request", toolCallId=call.id, approvalId=approval_id, isAutomatic=True
    )
    yield _response_chunk(approval_id, approved=False, reason=_model_text(result))


def _response_chunk(approval_id: str, *, approved: bool, reason: str | None) -> ToolApprovalResponseChunk:
    response = ToolApprovalResponseChunk(type="tool-approval-response", approvalId=approval_id, approved=approved)
    if reason:
        response["reason"] = reason
    return response


def _result_chunk(call: ToolCall, result: ToolResult, session_id: PublicId) -> UIMessageChunk:
    if result.status == "denied":
        return ToolOutputDeniedChunk(type="tool-output-denied", toolCallId=call.id)
    if result.status != "ok":
        text = _model_text(result)
        return ToolOutputErrorChunk(type="tool-output-error", toolCallId=call.id, errorText=text, dynamic=True)
    output = ToolOutput(outcome=result.outcome, content=result.content)
    if result.duration_ms is not None:
        output["durationMs"] = result.duration_ms
    if result.blob:
        output["blob"] = _large_text(result.blob, session_id)
    if result.cut:
        output["cut"] = True
    return ToolOutputAvailableChunk(type="tool-output-available", toolCallId=call.id, output=output, dynamic=True)


def _model_text(result: ToolResult) -> str:
    return f"{result.outcome}\n{result.content}" if result.content else result.outcome


def _large_text(ref: BlobRef, session_id: PublicId) -> LargeText:
    return LargeText(url=f"/workflow/{session_id}/blobs/{ref.hash}", chars=ref.chars)
