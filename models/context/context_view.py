"""The account of a session's context: what the model still sees of each turn, and what it has forgotten (CTX-8)."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView
from turnkeeper.models.context.request_size import head_tokens, system_tokens, tools_tokens
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.tokens import tokens_of
from turnkeeper.models.transcript.model_call import RequestHead
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Frozen

TURNS_A_PAGE = 500

Seen = Literal["verbatim", "truncated", "summarised", "refused", "not_at_all"]
"""How the model sees a turn.

`truncated`: some of its messages, or parts of them; `summarised`: what the summary says of it, no more; `refused`: a
note stands for it, since the model's vendor refused it (CTX-7).
"""


class TurnInContext(Frozen):
    """One turn of the transcript, `number` from 1; the id is null where the turn is in the archive and out of sight."""

    number: int
    message_id: str | None = None
    seen: Seen
    estimated_tokens: int = 0
    """Of the messages that are seen."""
    characters_cut: int = 0
    """Of a truncated or refused turn: characters of its messages that are no longer seen."""


class FixedPart(Frozen):
    """What is sent before the messages with every request of a segment."""

    system_prompt_tokens: int
    tools: list[str]
    tools_tokens: int
    estimated_tokens: int


class SummaryInContext(Frozen):
    """What stands for evicted messages. `turns` are ranges of turn numbers, both ends in."""

    text: str
    turns: list[tuple[int, int]]
    files_written: list[str]
    estimated_tokens: int


class ContextView(Frozen):
    """What the model has before it now. Tokens are estimates, within about 20 % (CTX-6).

    `turns` are oldest first; with `has_more` there are older ones: ask again with `before`, the first one's number.
    """

    segment: int
    message_count: int
    max_messages: int
    """The cap of the window that is kept now; 0: none."""
    max_tokens: int | None = None
    """The most that is sent, the fixed part too, since a vendor said that the context was too long; null: no limit.

    It holds for this model and this configuration of the window (CTX-7).
    """
    window_halved: bool
    """A vendor said that the context was too long; since then less is sent than configured (CTX-7)."""
    estimated_tokens: int
    """Everything together, the fixed part too."""
    reported_tokens: int | None = None
    """The same, as the vendor counted it at the last call of this segment, with an estimate of what came after."""
    fixed: FixedPart
    summary: SummaryInContext | None = None
    messages_awaiting_summary: int = 0
    summaries_failed: int = 0
    messages_given_up: int = 0
    """Evicted, and in no summary: so many waited for one that no more could be carried."""
    turns: list[TurnInContext]
    has_more: bool
    as_of: Stamp = None


def context_view(
    context: ModelContext,
    transcript: Transcript,
    head: RequestHead,
    config: ConversationHistoryConfig,
    *,
    model: str,
    before: int | None = None,
    limit: int = TURNS_A_PAGE,
) -> ContextView:
    """Tell what the model sees of the newest `limit` turns, or of those before turn number `before`."""
    end = min(transcript.count, transcript.count if before is None else before - 1)
    first = max(1, end - limit + 1)
    fixed, view, window = _fixed_part(head), context.view, context.window(config, model=model)
    max_tokens = context.max_tokens(config, model=model)
    return ContextView(
        segment=view.segment,
        message_count=view.message_count,
        max_messages=window.max_messages,
        max_tokens=max_tokens,
        window_halved=window != config or max_tokens is not None,
        estimated_tokens=fixed.estimated_tokens + view.estimated_tokens,
        reported_tokens=context.reported_tokens,
        fixed=fixed,
        summary=_summary(view),
        messages_awaiting_summary=sum(len(entry.messages) for entry in context.waiting),
        summaries_failed=context.summaries_failed,
        messages_given_up=context.given_up,
        turns=_turns(context, transcript, range(first, end + 1)),
        has_more=first > 1,
    )


def _turns(context: ModelContext, transcript: Transcript, numbers: range) -> list[TurnInContext]:
    chars, ids, refused = Counter[int](), dict[int, str](), set[int]()
    for entry in context.view.entries:
        chars[entry.ref.number] += entry.chars
        ids[entry.ref.number] = entry.ref.turn
        if entry.ref.refused:
            refused.add(entry.ref.number)
    covered = context.view.summary.turns if context.view.summary else []
    return [
        TurnInContext(
            number=number,
            message_id=ids.get(number) or transcript.id_of(number),
            seen=(
                "refused"
                if number in refused
                else _seen(number, is_shown=number in chars, cut=context.cut, covered=covered)
            ),
            estimated_tokens=tokens_of(chars[number]),
            characters_cut=context.cut.get(number, 0),
        )
        for number in numbers
    ]


def _seen(number: int, *, is_shown: bool, cut: dict[int, int], covered: Iterable[tuple[int, int]]) -> Seen:
    if is_shown:
        return "truncated" if cut.get(number) else "verbatim"
    return "summarised" if any(first <= number <= last for first, last in covered) else "not_at_all"


def _fixed_part(head: RequestHead) -> FixedPart:
    return FixedPart(
        system_prompt_tokens=system_tokens(head),
        tools=[tool.name for tool in head.tools],
        tools_tokens=tools_tokens(head),
        estimated_tokens=head_tokens(head),
    )


def _summary(view: ModelView) -> SummaryInContext | None:
    entry, summary = view.summary_entry, view.summary
    if entry is None or summary is None:
        return None
    return SummaryInContext(
        text=summary.text,
        turns=summary.turns,
        files_written=summary.files,
        estimated_tokens=tokens_of(entry.chars),
    )
