"""People's decisions on tool calls (AGT-8).

The tool policy determines which calls need one (`models/session/tools.py`). The approval is part of the
call in its step, so clients see it and the next run carries it. A decision names the call and the digest of its
arguments: it can't apply to a call that the person has not seen.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import groupby
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue
from pydantic_core import to_json

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import CALL_ID_PATTERN, PublicId
from turnkeeper.models.legible import MAX_BLANK_LINES, indented, legible_excerpt, legible_json, legible_line
from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.conversation import (
    Approval,
    ApprovalDecision,
    BlobRef,
    ConversationMessage,
    FileChange,
    ModelStep,
    ToolCall,
    ToolResult,
)
from turnkeeper.models.transcript.model_call import ToolEffect, ToolSpec
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import (
    PERSON_CHARS,
    REASON_CHARS,
    Compact,
    Frozen,
    Person,
    Reason,
    Stamp,
    Strict,
    UtcDatetime,
)

APPROVAL_BYTES = 900
"""Size of an approval in a turn, as JSON, with a reason of `REASON_BYTES` and a name of `PERSON_BYTES`, but without a
change."""

CHANGE_BYTES = 500
"""Size of a change without its difference, as JSON."""

MAX_DIFF_BYTES = 8_000
"""Maximum of a difference, as JSON; a turn that has little room carries less of it."""

REASON_BYTES = 512
PERSON_BYTES = 120

NO_DIFFERENCE = "The difference to the file can't be shown now, and is not checked when the call runs."
"""The note of a change that no worker could look at."""

CallId = Annotated[str, Field(pattern=CALL_ID_PATTERN, examples=["3.1.0"])]


class Decision(Strict):
    """A decision on a tool call; `args_digest` is from the call that the person saw.

    The model is told the `reason` of a rejection.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"args_digest": "1ae4dc50c79f37fc" * 4, "decision": "approve"},
                {"args_digest": "1ae4dc50c79f37fc" * 4, "decision": "reject", "reason": "Write to drafts/ instead."},
            ]
        }
    )

    args_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    decision: ApprovalDecision
    reason: Reason | None = None


class ResolveApproval(Decision):
    """Argument of `resolve_approval`: the decision on the call `call_id`, and the person whose decision it is."""

    call_id: CallId
    decided_by: Person | None = None


class ApprovalReceipt(Compact):
    """Answer of `resolve_approval`: the recorded decision on the call."""

    call_id: str
    decision: ApprovalDecision


class PendingApproval(Frozen):
    """A call that waits for a decision. With an `args_blob`, `args` is empty and the blob has the arguments as JSON.

    `text` is what people decide on, made from exactly what `args_digest` covers: every interface shows all of it.
    `is_whole`: it has the arguments. If not they can't be read now, and nobody can know what would be approved.
    `server` is the name of the tool's server as configured, empty for a built-in tool. `workflow_id` is the session
    that the call belongs to, which may be a task of the one that was asked; the session itself leaves it out.
    """

    workflow_id: PublicId | None = None
    call_id: str
    message_id: str
    tool: str
    server: str = ""
    description: str = ""
    args: dict[str, JsonValue] = {}
    args_blob: BlobRef | None = None
    args_digest: str
    effect: ToolEffect = "at_most_once"
    change: FileChange | None = None
    text: str = ""
    is_whole: bool = True
    asked_at: UtcDatetime
    expires_at: UtcDatetime

    def with_text(self, args: str | None) -> "PendingApproval":
        """Return the approval with its text; `args` is the JSON of its arguments, `None` if it can't be read now."""
        text = approval_text(
            tool=self.tool,
            server=self.server,
            description=self.description,
            effect=self.effect,
            args=args,
            change=self.change,
        )
        return self.model_copy(update={"text": text, "is_whole": args is not None})


class PendingApprovals(Frozen):
    """The calls that wait for a decision, in order; `omitted` counts those that do not fit in about 1 MB.

    `allowances` are the tools that were allowed for the session; a new `tool_policy` revokes them.
    """

    approvals: list[PendingApproval] = []
    omitted: int = 0
    allowances: list[str] = []
    as_of: Stamp = None


def args_digest(call: ToolCall) -> str:
    """Return the SHA-256 of the call's arguments as compact JSON, in hex, by reference or not.

    >>> args_digest(ToolCall(id="1.1.0", name="pay", args={"to": "me"}))[:16]
    '1ae4dc50c79f37fc'
    """
    return call.args_blob.hash if call.args_blob else sha256(to_json(call.args)).hexdigest()


def ask_for_approval(call: ToolCall, *, now: datetime, timeout: float, change: FileChange | None = None) -> ToolCall:
    """Return the call with an approval that a person can decide for `timeout` seconds from `now`."""
    expires_at = now + timedelta(seconds=timeout)
    approval = Approval(args_digest=args_digest(call), asked_at=now, expires_at=expires_at, change=change)
    return call.model_copy(update={"approval": approval})


def check_decision(transcript: Transcript, request: ResolveApproval, *, now: datetime) -> ToolCall:
    """Return the call if the decision is valid, or was recorded before. Raises `RejectedError`."""
    call = _find_call(transcript, request.call_id)
    approval = call.approval
    if approval is None:
        raise RejectedError("not_awaiting", f"Nobody was asked about call {call.id}.")
    if approval.args_digest != request.args_digest:
        raise RejectedError(
            "other_arguments", f"Call {call.id} has other arguments than the ones that were decided on."
        )
    if approval.decision == request.decision:
        return call  # a repeated request: nothing changes
    if approval.decision == "expired" or (call.awaits_approval and now >= approval.expires_at):
        raise RejectedError(
            "not_awaiting",
            f"The time to decide on call {call.id} ended at {approval.expires_at:%Y-%m-%d %H:%M:%S} UTC.",
        )
    if not call.awaits_approval:
        what = f"was decided: {approval.decision}" if approval.decision else "ended before anyone decided"
        raise RejectedError("not_awaiting", f"Call {call.id} {what}.")
    return call


def _find_call(transcript: Transcript, call_id: str) -> ToolCall:
    turn_id = transcript.id_of(int(call_id.partition(".")[0]))
    steps = transcript.get(turn_id).steps if turn_id else []
    calls = (call for step in steps if isinstance(step, ModelStep) for call in step.tool_calls)
    call = next((call for call in calls if call.id == call_id), None)
    if call is None:
        raise RejectedError("unknown_call", f"There is no call {call_id!r} in this session.", field="call_id")
    return call


def record_decision(
    call: ToolCall, decision: ApprovalDecision, *, reason: str | None, by: str | None = None, now: datetime
) -> ToolCall:
    """Return the call with a decision of the person `by`; None: unknown."""
    bounded = reason and bound_json(reason, REASON_CHARS, REASON_BYTES)
    person = by and bound_json(by, PERSON_CHARS, PERSON_BYTES)
    return _with_approval(call, decision=decision, reason=bounded, decided_at=now, decided_by=person)


def expire_approval(call: ToolCall, *, now: datetime) -> ToolCall:
    """Return the call with its approval expired, if its time is over."""
    if call.approval is None or not call.awaits_approval or now < call.approval.expires_at:
        return call
    return _with_approval(call, decision="expired", decided_at=now)


def _with_approval(call: ToolCall, **update: object) -> ToolCall:
    assert call.approval is not None  # noqa: S101  # callers check it
    return call.model_copy(update={"approval": call.approval.model_copy(update=update)})


def approved_file(call: ToolCall) -> str | None:
    """Return the digest of the file whose change was approved, empty if it is new; `None`: any file may be there.

    A person who allows a tool for the session doesn't decide by one difference.
    """
    approval = call.approval
    return approval.change.sha256 if approval and approval.change and approval.decision == "approve" else None


def rejection_result(call: ToolCall) -> ToolResult | None:
    """Return the result of a rejected call, as the model sees it; `None` if it was not rejected.

    >>> from datetime import UTC
    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> call = ask_for_approval(ToolCall(id="1.1.0", name="pay", args={}), now=now, timeout=60)
    >>> result = rejection_result(record_decision(call, "reject", reason="Too much.", now=now))
    >>> result.outcome, result.content, result.status
    ('pay was rejected by the user', 'Reason: Too much.', 'denied')
    """
    approval = call.approval
    if approval is None or approval.decision not in ("reject", "expired"):
        return None
    if approval.decision == "expired":
        waited = (approval.expires_at - approval.asked_at).total_seconds()
        content = f"limits.approval_timeout ({waited:g} s) was over; that counts as a rejection."
        return ToolResult(outcome=f"Nobody decided on {call.name} in time", content=content, status="denied")
    content = f"Reason: {approval.reason}" if approval.reason else ""
    return ToolResult(outcome=f"{call.name} was rejected by the user", content=content, status="denied")


def awaiting_calls(turn: ConversationMessage | None) -> list[ToolCall]:
    """Return the calls of a running turn that wait for a decision; all are in its newest step."""
    step = turn.steps[-1] if turn and turn.steps else None
    return [call for call in step.tool_calls if call.awaits_approval] if isinstance(step, ModelStep) else []


def pending_approvals(
    turn: ConversationMessage | None, tools: list[ToolSpec], allowances: list[str], *, max_bytes: int
) -> PendingApprovals:
    """Return the calls that wait for a decision, with at most `max_bytes` of JSON, but at least one.

    Arguments that the store has are not in the texts yet: the gateway adds them.
    """
    specs = {tool.name: tool for tool in tools}
    waiting, approvals, room = awaiting_calls(turn), list[PendingApproval](), max_bytes
    for call in waiting:
        pending = _pending(call, turn.id if turn else "", specs.get(call.name))
        room -= len(pending.model_dump_json().encode())
        if room < 0 and approvals:
            break
        approvals.append(pending)
    return PendingApprovals(approvals=approvals, omitted=len(waiting) - len(approvals), allowances=allowances)


def _pending(call: ToolCall, message_id: str, tool: ToolSpec | None) -> PendingApproval:
    assert call.approval is not None  # noqa: S101  # as above
    pending = PendingApproval(
        call_id=call.id,
        message_id=message_id,
        tool=call.name,
        server=tool.server if tool else "",
        description=tool.description if tool else "",
        args=call.args if isinstance(call.args, dict) else {},
        args_blob=call.args_blob,
        args_digest=call.approval.args_digest,
        effect=tool.effect if tool else "at_most_once",
        change=call.approval.change,
        asked_at=call.approval.asked_at,
        expires_at=call.approval.expires_at,
    )
    return pending.with_text(None if call.args_blob else to_json(pending.args).decode())


MAX_PURPOSE_BYTES = 2_000

BUILT_IN = "built in"

NOT_LOADED = "(They are stored apart, and can't be loaded here now.)"

EFFECTS: dict[ToolEffect, str] = {
    "read": "only reads",
    "idempotent": "changes something; a repeated run changes nothing more",
    "at_most_once": "changes something; runs at most once",
}


def approval_text(
    *, tool: str, server: str, description: str, effect: ToolEffect, args: str | None, change: FileChange | None
) -> str:
    """Return the one text of a call that waits for approval, which every interface shows (AGT-8).

        Tool: refund_order
        Server: shop
        Purpose:
          | Refund an order. It can't be undone.
        Effect: changes something; runs at most once
        Arguments:
          order_id: "SHOP-2026-1009"

    Only these labels begin a line; all that a model, a server or a file has written is indented below one of them.

    `args` are its arguments as compact JSON, as the digest covers them; `None`: they are not at hand. An empty
    `server`: the tool is built in. The effect of another server's tool is what that server says.
    """
    lines = [f"Tool: {legible_line(tool)}", f"Server: {legible_line(server) if server else BUILT_IN}"]
    if description.strip():
        lines += ["Purpose:", *indented(legible_excerpt(description, max_bytes=MAX_PURPOSE_BYTES))]
    lines.append(f"Effect: {EFFECTS[effect]}{', says the server' if server else ''}")
    if change:
        # Before the arguments, which have all of the new content: the difference says what that means.
        lines += ["Change:", *indented(_change_lines(change))]
    arguments = NOT_LOADED if args is None else legible_json(args)
    lines += ["Arguments:", *indented(arguments.split("\n"))]
    return "\n".join(lines)


def _change_lines(change: FileChange) -> Iterator[str]:
    yield legible_line(change.note)
    for line, run in groupby(change.diff.split("\n") if change.diff else []):
        marked, count = line[:1] + legible_line(line[1:]), sum(1 for _ in run)
        is_blank = not line[1:].strip(" \t")
        yield from [f"({count} lines of {marked})"] if is_blank and count > MAX_BLANK_LINES else [marked] * count
    if change.omitted_lines:
        yield f"({change.omitted_lines:,} more lines of the difference)"
