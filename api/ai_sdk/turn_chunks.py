"""One turn as the chunks of a UI message: a projection of what the session shows, and nothing else (API-1).

Theory of operation. A turn is told by two kinds of news, in whatever order they come: the turn as the session has it
now, whole each time, and growth of the answer the model is writing. `TurnChunks` remembers what its client was told and
returns what is to be told next:

    start ─► ( [steering-message] start-step ─► thinking, text, calls ─► results ─► finish-step )* ─► end

At most one step is open. While its text is partial output it may be taken back (`reset-step`); once the session has the
step, its text is settled, and only what becomes of its calls follows. So after every ended turn, and on every replay,
a client holds exactly what the session holds.

A message ends with the turn (`finish`, `abort` or `error`), or where the turn waits for people and nothing else: the AI
SDK decides on tool calls between two streams. The next one goes on with the same message, from what the client holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from turnkeeper.api.ai_sdk.step_text import NamedCall, StepText, partial_text, settled_text
from turnkeeper.api.ai_sdk.tool_chunks import tool_chunks
from turnkeeper.api.ai_sdk.ui_chunks import (
    AbortChunk,
    ErrorChunk,
    FinishChunk,
    FinishReason,
    FinishStepChunk,
    MessageMetadata,
    Notice,
    NoticeChunk,
    ReasoningDeltaChunk,
    ReasoningEndChunk,
    ReasoningStartChunk,
    ResetStepChunk,
    StartChunk,
    StartStepChunk,
    SteeredText,
    SteeringMessageChunk,
    TextDeltaChunk,
    TextEndChunk,
    TextStartChunk,
    TokenUsage,
    ToolInputStartChunk,
    UIMessageChunk,
)
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.partial_output import GrownPart, PartialGrowth, PartialOutput, PartialPart
from turnkeeper.models.transcript.trajectory import ModelStep, Usage, UserStep

_ANSWER = ":answer"

Chunks = list[UIMessageChunk]


def answer_id(turn_id: str) -> str:
    """Return the id of the message that answers a turn's prompt; no prompt can have it.

    >>> answer_id("p-1"), turn_of_answer("p-1:answer"), turn_of_answer("p-1")
    ('p-1:answer', 'p-1', None)
    """
    return turn_id + _ANSWER


def turn_of_answer(message_id: str) -> str | None:
    """Return the turn that a message answers; `None` where it answers none."""
    return message_id.removesuffix(_ANSWER) if message_id.endswith(_ANSWER) else None


@dataclass(frozen=True)
class Held:
    """What a client holds of a message when a stream begins: its newest `step`, and what it knows of that step's calls.

    `told` are the types of chunks, by call; `steered` the ids of messages that joined the turn.
    """

    step: int = 0
    told: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    steered: frozenset[str] = frozenset()


NOTHING_HELD = Held()


class TurnChunks:
    """The message that answers the turn `turn_id`, for one client."""

    def __init__(
        self, session_id: str, turn_id: str, held: Held = NOTHING_HELD, *, awaits_worker: bool = False
    ) -> None:
        """Go on from what the client holds. `awaits_worker`: no worker has said yet that it knows the prompt."""
        self.turn_id = turn_id
        self.awaits_worker = awaits_worker
        self.has_begun = False
        self.is_over = False
        """There is nothing more to tell in this stream."""
        self.settled = held.step
        """The number of the newest step whose text was told for good."""
        self._session_id = session_id
        self._has_given_notice = False
        self._told = {call_id: set(types) for call_id, types in held.told.items()}
        self._steered = set(held.steered)
        self._first_step = held.step
        self._is_step_open = False
        self._is_settled = False
        self._shown = StepText()
        self._partial: PartialOutput | None = None

    # ---- news

    def on_turn(self, turn: ConversationMessage) -> Chunks:
        """Return what is to be told of the turn as it is now."""
        if self.is_over:
            return []
        self._has_given_notice = False
        chunks = [] if self.has_begun else self._begin(turn)
        for step in turn.steps:
            chunks += self._steer(step) if isinstance(step, UserStep) else self._take(step)
        if turn.is_complete:
            return chunks + self._end(turn)
        if waits_for_people(turn):
            return chunks + self._finish(turn, "tool-calls")
        return chunks + self._show_partial()

    def on_partial(self, growth: PartialGrowth) -> Chunks:
        """Return what is to be told of an answer that grows."""
        if growth.message_id != self.turn_id:
            return []
        self._partial = _grown(self._partial, growth)
        return self._show_partial() if self.has_begun and not self.is_over else []

    def notice(self, sentence: str) -> Chunks:
        """Say why nothing is told for now; once, until there is news of the turn."""
        if self._has_given_notice:
            return []
        self._has_given_notice = True
        return [NoticeChunk(type="data-notice", data=Notice(text=sentence), transient=True)]

    def fail(self, sentence: str) -> Chunks:
        """End the stream without the turn's end, and say why."""
        self.is_over = True
        return [*self._close_step(), ErrorChunk(type="error", errorText=sentence)]

    # ---- beginning and end

    def _begin(self, turn: ConversationMessage) -> Chunks:
        self.has_begun = True
        metadata = MessageMetadata(turnId=turn.id, createdAt=turn.timestamp.isoformat())
        return [StartChunk(type="start", messageId=answer_id(turn.id), messageMetadata=metadata)]

    def _end(self, turn: ConversationMessage) -> Chunks:
        sentence = turn.error or ""
        if not turn.is_error:
            return self._finish(turn, "stop")
        if turn.status == "cancelled":
            return [*self._close_step(), AbortChunk(type="abort", reason=sentence), *self._finish(turn, "other")]
        return [*self._close_step(), ErrorChunk(type="error", errorText=sentence), *self._finish(turn, "error")]

    def _finish(self, turn: ConversationMessage, reason: FinishReason) -> Chunks:
        self.is_over = True
        return [*self._close_step(), FinishChunk(type="finish", finishReason=reason, messageMetadata=_account(turn))]

    # ---- steps

    def _steer(self, step: UserStep) -> Chunks:
        if step.message_id in self._steered:
            return []
        self._steered.add(step.message_id)
        parts = [SteeredText(type="text", text=step.content)]
        # Where the step that takes it up is being shown already, that one is begun anew behind it.
        return [*self._close_step(), SteeringMessageChunk(type="steering-message", id=step.message_id, parts=parts)]

    def _take(self, step: ModelStep) -> Chunks:
        chunks: Chunks = []
        if step.number > self.settled:
            chunks += self._close_settled_step()
            chunks += self._show(settled_text(step), step=step.number, is_whole=True)
            self.settled = step.number
        if step.number >= self._first_step:
            for call in step.tool_calls:
                for chunk in tool_chunks(call, session_id=self._session_id):
                    chunks += self._once(call.id, chunk)
        return chunks

    def _once(self, call_id: str, chunk: UIMessageChunk) -> Chunks:
        told = self._told.setdefault(call_id, set())
        if chunk["type"] in told:
            return []
        told.add(chunk["type"])
        return [chunk]

    def _show_partial(self) -> Chunks:
        """Tell what the model writes of the step after those that are settled."""
        if self._partial is None or self._partial.step != self.settled + 1:
            return []
        return [
            *self._close_settled_step(),
            *self._show(partial_text(self._partial), step=self._partial.step, is_whole=False),
        ]

    # ---- the open step

    @property
    def _is_partial(self) -> bool:
        """The open step is not settled yet."""
        return self._is_step_open and not self._is_settled

    def _show(self, whole: StepText, *, step: int, is_whole: bool) -> Chunks:
        """Tell of the step what of `whole` was not told, once all that was told is known to be right."""
        chunks: Chunks = []
        if not self._is_step_open:
            chunks.append(StartStepChunk(type="start-step"))
        elif not self._shown.leads_to(whole):
            chunks.append(ResetStepChunk(type="reset-step"))
            self._shown = StepText()
        shown, self._shown = self._shown, whole
        self._is_step_open, self._is_settled = True, is_whole
        chunks += _reasoning(shown, whole, part_id=f"reasoning-{step}", is_whole=is_whole)
        chunks += _text(shown, whole, part_id=f"text-{step}", is_whole=is_whole)
        return chunks + ([] if is_whole else _calls_begun(whole.calls[len(shown.calls) :]))

    def _close_settled_step(self) -> Chunks:
        return [] if self._is_partial else self._close_step()

    def _close_step(self) -> Chunks:
        """End the open step; what of it is not settled is taken back."""
        if not self._is_step_open:
            return []
        taken_back: Chunks = (
            [ResetStepChunk(type="reset-step")] if self._is_partial and self._shown != StepText() else []
        )
        self._is_step_open, self._shown = False, StepText()
        return [*taken_back, FinishStepChunk(type="finish-step")]


def waits_for_people(turn: ConversationMessage) -> bool:
    """Tell whether the turn goes on only when people decide: no other call of its step is under way."""
    newest = turn.steps[-1] if turn.steps else None
    if turn.status != "awaiting_approval" or not isinstance(newest, ModelStep):
        return False
    return all(call.awaits_approval or call.result for call in newest.tool_calls)


def _grown(old: PartialOutput | None, growth: PartialGrowth) -> PartialOutput | None:
    """Return the answer with what is new; `None` where its beginning was never told."""
    if growth.fresh:
        old = PartialOutput(**{name: getattr(growth, name) for name in _TAG})
    if old is None:
        return None
    parts = list(old.parts)
    for grown in growth.parts:
        _grow_part(parts, grown)
    return old.model_copy(update={"parts": parts})


_TAG = tuple(name for name in PartialOutput.model_fields if name != "parts")


def _grow_part(parts: list[PartialPart], grown: GrownPart) -> None:
    if grown.index < len(parts):
        part = parts[grown.index]
        parts[grown.index] = part.model_copy(update={"text": part.text + grown.text})
    else:
        parts.append(PartialPart(kind=grown.kind, text=grown.text, omitted=grown.omitted))


def _reasoning(shown: StepText, whole: StepText, *, part_id: str, is_whole: bool) -> Chunks:
    chunks: Chunks = []
    if whole.reasoning and not shown.reasoning:
        chunks.append(ReasoningStartChunk(type="reasoning-start", id=part_id))
    if rest := whole.reasoning[len(shown.reasoning) :]:
        chunks.append(ReasoningDeltaChunk(type="reasoning-delta", id=part_id, delta=rest))
    if whole.reasoning and (is_whole or whole.text or whole.calls) and not (shown.text or shown.calls):
        chunks.append(ReasoningEndChunk(type="reasoning-end", id=part_id))
    return chunks


def _text(shown: StepText, whole: StepText, *, part_id: str, is_whole: bool) -> Chunks:
    chunks: Chunks = []
    if whole.text and not shown.text:
        chunks.append(TextStartChunk(type="text-start", id=part_id))
    if rest := whole.text[len(shown.text) :]:
        chunks.append(TextDeltaChunk(type="text-delta", id=part_id, delta=rest))
    if whole.text and (is_whole or whole.calls) and not shown.calls:
        chunks.append(TextEndChunk(type="text-end", id=part_id))
    return chunks


def _calls_begun(calls: Iterable[NamedCall]) -> Chunks:
    return [
        ToolInputStartChunk(type="tool-input-start", toolCallId=call.id, toolName=call.name, dynamic=True)
        for call in calls
    ]


def _account(turn: ConversationMessage) -> MessageMetadata:
    """Return what the turn took so far."""
    metadata = MessageMetadata()
    models = [step.model for step in turn.steps if isinstance(step, ModelStep) and step.model]
    if models:
        metadata["model"] = models[-1]
    if turn.usage:
        metadata["usage"] = _usage(turn.usage)
    if turn.processing_time_ms is not None:
        metadata["processingTimeMs"] = turn.processing_time_ms
    return metadata


def _usage(usage: Usage) -> TokenUsage:
    told = TokenUsage(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.tokens,
        reasoningTokens=usage.reasoning_tokens,
        cachedInputTokens=usage.cached_tokens,
    )
    if usage.cost is not None:
        told["cost"] = usage.cost
    return told
