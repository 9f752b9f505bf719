"""One turn as the chunks of a UI message, derived only from what the session shows (API-1).

A turn has two kinds of news, in any order: the whole turn as the session has it now, and the growth of the answer that
the model is writing. `TurnChunks` remembers what its client has and returns what to send next:

    start ─► ( [steering-message] start-step ─► thinking, text, calls ─► results ─► finish-step )* ─► end

At most one step is open. While its text is partial output it may be discarded (`reset-step`); once the session has the
step, its text is final, and only the results of its calls follow. So after every ended turn, and on every resumption,
a client has exactly what the session has.

A message ends with the turn (`finish`, `abort` or `error`), or where the turn only waits for approval: in the AI SDK,
people decide on tool calls between two streams. The next stream continues the same message from what the client has.

**The content of a step** is sent as thinking, text, tool calls. A step arrives twice: as partial output, in parts in
the vendor's order, and finally as thinking, text and calls. Both are converted to the same form. If what was sent early
is the beginning of the final text, the rest follows and nothing is sent twice. If it is not (a retried attempt, parts
in another order, a text with an omitted beginning), the client has to drop the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from turnkeeper.features.ai_sdk.chunks import (
    AbortChunk,
    ErrorChunk,
    FinishChunk,
    FinishReason,
    MessageMetadata,
    Notice,
    NoticeChunk,
    PartChunk,
    PartDeltaChunk,
    Progress,
    ProgressChunk,
    StartChunk,
    SteeringMessageChunk,
    SteeringText,
    StepChunk,
    TokenUsage,
    ToolInputStartChunk,
    UIMessageChunk,
    tool_chunks,
)
from turnkeeper.models.ids import PublicId, call_id
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, Usage, UserStep
from turnkeeper.models.transcript.partial_output import (
    CallProgress,
    PartialGrowth,
    PartialOutput,
    PartialPart,
    with_growth,
)

LEFT_OUT = "…"
"""Stands for the omitted beginning of a partial text."""


@dataclass(frozen=True)
class NamedCall:
    """A tool call with our own id, not the vendor's."""

    id: str
    name: str


@dataclass(frozen=True)
class StepText:
    """Thinking, text and calls of a step, or the beginning of them."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[NamedCall, ...] = ()

    def leads_to(self, whole: "StepText") -> bool:
        """Return whether a client that has this can append its way to `whole`.

        A kind of content has ended as soon as a later kind was sent.

        >>> start = StepText(reasoning="Hm.", text="He")
        >>> [start.leads_to(StepText(reasoning=thought, text="Hello")) for thought in ("Hm.", "Hm. So.")]
        [True, False]
        """
        if self.calls:
            return self == replace(whole, calls=whole.calls[: len(self.calls)])
        if self.text:
            return self.reasoning == whole.reasoning and whole.text.startswith(self.text)
        return whole.reasoning.startswith(self.reasoning)


def final_text(step: ModelStep) -> StepText:
    """Return the final content of a step."""
    return StepText(
        reasoning=step.thinking or "",
        text=step.text or "",
        calls=tuple(NamedCall(call.id, call.name) for call in step.tool_calls),
    )


def partial_text(partial: PartialOutput) -> StepText:
    """Return what can be sent of a snapshot: its content up to the first part that is out of order.

    >>> parts = [PartialPart(kind="think", text="Hm."), PartialPart(kind="respond", text="I")]
    >>> parts += [PartialPart(kind="think", text="Hm?"), PartialPart(kind="respond", text=" say")]
    >>> partial = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1, parts=parts)
    >>> partial_text(partial)
    StepText(reasoning='Hm.', text='I say', calls=())
    """
    thoughts = takewhile(lambda part: part.kind == "think", partial.parts)
    before_calls = takewhile(lambda part: part.kind != "call", partial.parts)
    calls = (part for part in partial.parts if part.kind == "call")
    whole_names = takewhile(lambda part: part.text and not part.omitted, calls)
    return StepText(
        reasoning="\n\n".join(map(_text_of, thoughts)),
        text="".join(_text_of(part) for part in before_calls if part.kind == "respond"),
        calls=tuple(
            NamedCall(call_id(partial.turn, partial.step, index), part.text) for index, part in enumerate(whole_names)
        ),
    )


def _text_of(part: PartialPart) -> str:
    return LEFT_OUT + part.text if part.omitted else part.text


_ANSWER = ":answer"

Chunks = list[UIMessageChunk]


def answer_id(turn_id: str) -> str:
    """Return the id of the message that answers a turn's prompt. No prompt can have this id.

    >>> answer_id("p-1"), turn_of_answer("p-1:answer"), turn_of_answer("p-1")
    ('p-1:answer', 'p-1', None)
    """
    return turn_id + _ANSWER


def turn_of_answer(message_id: str) -> str | None:
    """Return the turn that a message answers; `None` if it is not an answer."""
    return message_id.removesuffix(_ANSWER) if message_id.endswith(_ANSWER) else None


@dataclass(frozen=True)
class ClientState:
    """What a client has of a message when a stream begins: its newest `step`, and the chunk types of each call.

    `steering`: the ids of the messages that joined the turn.
    """

    step: int = 0
    chunk_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    steering: frozenset[str] = frozenset()


class TurnChunks:
    """The message that answers a turn, for one client, continued from what the client has.

    `awaits_worker`: the prompt was just sent, and maybe no worker is there.
    """

    def __init__(
        self, session_id: PublicId, turn_id: str, client: ClientState | None = None, *, awaits_worker: bool = False
    ) -> None:
        client = client or ClientState()
        self.turn_id = turn_id
        self.awaits_worker = awaits_worker
        self.first_notice: str | None = None
        """A sentence that the stream begins with."""
        self.has_begun = False
        self.is_over = False
        """Nothing more will be sent in this stream."""
        self.final_step = client.step
        """The number of the newest step whose final text the client has."""
        self._session_id = session_id
        self._has_given_notice = False
        self._chunk_types = {call_id: set(types) for call_id, types in client.chunk_types.items()}
        self._steering = set(client.steering)
        self._first_step = client.step
        self._is_step_open = False
        self._is_step_final = False
        self._step_text = StepText()
        """What the client has of the open step."""
        self._partial: PartialOutput | None = None

    # ---- news

    def on_turn(self, turn: ConversationMessage, pending: Mapping[str, PendingApproval] | None = None) -> Chunks:
        """Return the next chunks for the turn as it is now; `pending`: what people decide on, by call id."""
        if self.is_over:
            return []
        self._has_given_notice = False
        chunks: Chunks = []
        if not self.has_begun:
            self.has_begun = True
            metadata = MessageMetadata(turnId=turn.id, createdAt=turn.timestamp.isoformat())
            chunks.append(StartChunk(type="start", messageId=answer_id(turn.id), messageMetadata=metadata))
        for step in turn.steps:
            chunks += self._steer(step) if isinstance(step, UserStep) else self._add_step(step, pending or {})
        if turn.is_complete:
            return chunks + self._end(turn)
        if waits_for_people(turn):
            return chunks + self._finish(turn, "tool-calls")
        return chunks + self._show_partial()

    def on_partial(self, growth: PartialGrowth) -> Chunks:
        """Return the next chunks for an answer that has grown."""
        if growth.message_id != self.turn_id:
            return []
        self._partial = with_growth(self._partial, growth)
        return self._show_partial() if self.has_begun and not self.is_over else []

    def on_progress(self, progress: CallProgress) -> Chunks:
        """Return a chunk for the progress of a call that the client has."""
        if self.is_over or progress.call_id not in self._chunk_types:
            return []
        data = Progress(toolCallId=progress.call_id, text=progress.text)
        return [ProgressChunk(type="data-progress", data=data, transient=True)]

    def notice(self, sentence: str) -> Chunks:
        """Return a notice why nothing is sent for now; only one until there is news of the turn."""
        if self._has_given_notice:
            return []
        self._has_given_notice = True
        return [NoticeChunk(type="data-notice", data=Notice(text=sentence), transient=True)]

    def fail(self, sentence: str) -> Chunks:
        """End the stream before the turn ends, with the reason."""
        self.is_over = True
        return [*self._close_step(), ErrorChunk(type="error", errorText=sentence)]

    # ---- the end

    def _end(self, turn: ConversationMessage) -> Chunks:
        if not turn.is_error:
            return self._finish(turn, "stop")
        chunks, sentence = self._close_step(), turn.error or ""
        if turn.status == "cancelled":
            return [*chunks, AbortChunk(type="abort", reason=sentence), *self._finish(turn, "other")]
        return [*chunks, ErrorChunk(type="error", errorText=sentence), *self._finish(turn, "error")]

    def _finish(self, turn: ConversationMessage, reason: FinishReason) -> Chunks:
        self.is_over = True
        finish = FinishChunk(type="finish", finishReason=reason, messageMetadata=_end_metadata(turn))
        return [*self._close_step(), finish]

    # ---- steps

    def _steer(self, step: UserStep) -> Chunks:
        if step.message_id in self._steering:
            return []
        self._steering.add(step.message_id)
        parts = [SteeringText(type="text", text=with_names(step.content, step.attachments))]
        # If the step that responds to it is already being shown, that step begins again after it.
        return [*self._close_step(), SteeringMessageChunk(type="steering-message", id=step.message_id, parts=parts)]

    def _add_step(self, step: ModelStep, pending: Mapping[str, PendingApproval]) -> Chunks:
        chunks: Chunks = []
        if step.number > self.final_step:
            chunks += self._show(final_text(step), step=step.number, is_final=True)
            self.final_step = step.number
        if step.number >= self._first_step:
            for call in step.tool_calls:
                client_has = self._chunk_types.setdefault(call.id, set())
                chunks_of_call = tool_chunks(call, session_id=self._session_id, pending=pending.get(call.id))
                new = [chunk for chunk in chunks_of_call if chunk["type"] not in client_has]
                client_has.update(chunk["type"] for chunk in new)
                chunks += new
        return chunks

    def _show_partial(self) -> Chunks:
        """Return chunks for partial output, if it belongs to the step after the final ones."""
        if self._partial is None or self._partial.step != self.final_step + 1:
            return []
        return self._show(partial_text(self._partial), step=self._partial.step, is_final=False)

    # ---- the open step

    def _show(self, text: StepText, *, step: int, is_final: bool) -> Chunks:
        """Return what the client lacks of the step; discards the step first if the client has something else."""
        chunks: Chunks = self._close_step() if self._is_step_final else []
        if not self._is_step_open:
            chunks.append(StepChunk(type="start-step"))
        elif not self._step_text.leads_to(text):
            chunks.append(StepChunk(type="reset-step"))
            self._step_text = StepText()
        old, self._step_text = self._step_text, text
        self._is_step_open, self._is_step_final = True, is_final
        if not (old.text or old.calls):
            has_ended = bool(is_final or text.text or text.calls)
            chunks += _part_chunks("reasoning", step, old.reasoning, text.reasoning, has_ended=has_ended)
        if not old.calls:
            has_ended = bool(is_final or text.calls)
            chunks += _part_chunks("text", step, old.text, text.text, has_ended=has_ended)
        new_calls = () if is_final else text.calls[len(old.calls) :]
        return chunks + [
            ToolInputStartChunk(type="tool-input-start", toolCallId=call.id, toolName=call.name, dynamic=True)
            for call in new_calls
        ]

    def _close_step(self) -> Chunks:
        """Return chunks that end the open step, and discard what is not final."""
        if not self._is_step_open:
            return []
        is_taken_back = not self._is_step_final and self._step_text != StepText()
        self._is_step_open, self._is_step_final, self._step_text = False, False, StepText()
        finish = StepChunk(type="finish-step")
        return [StepChunk(type="reset-step"), finish] if is_taken_back else [finish]


def waits_for_people(turn: ConversationMessage) -> bool:
    """Return whether the turn only waits for approval: no other call of its step is running."""
    newest = turn.steps[-1] if turn.steps else None
    if turn.status != "awaiting_approval" or not isinstance(newest, ModelStep):
        return False
    return all(call.awaits_approval or call.result for call in newest.tool_calls)


def _part_chunks(kind: Literal["reasoning", "text"], step: int, old: str, new: str, *, has_ended: bool) -> Chunks:
    """Return the chunks that extend the part `old` of a step to `new`; none if the step has no such part."""
    chunks: Chunks = []
    part_id, is_text = f"{kind}-{step}", kind == "text"
    if new and not old:
        chunks.append(PartChunk(type="text-start" if is_text else "reasoning-start", id=part_id))
    if rest := new[len(old) :]:
        chunks.append(PartDeltaChunk(type="text-delta" if is_text else "reasoning-delta", id=part_id, delta=rest))
    if new and has_ended:
        chunks.append(PartChunk(type="text-end" if is_text else "reasoning-end", id=part_id))
    return chunks


def _end_metadata(turn: ConversationMessage) -> MessageMetadata:
    """Return the turn's model, usage and time so far."""
    metadata = MessageMetadata()
    models = [step.model for step in turn.steps if isinstance(step, ModelStep) and step.model]
    if models:
        metadata["model"] = models[-1]
    if turn.usage:
        metadata["usage"] = _token_usage(turn.usage)
    if turn.processing_time_ms is not None:
        metadata["processingTimeMs"] = turn.processing_time_ms
    return metadata


def _token_usage(usage: Usage) -> TokenUsage:
    tokens = TokenUsage(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.tokens,
        reasoningTokens=usage.reasoning_tokens,
        cachedInputTokens=usage.cached_tokens,
    )
    if usage.cost is not None:
        tokens["cost"] = usage.cost
    return tokens
