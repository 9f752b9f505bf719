"""The context view of a session: what the model still sees of each turn (CTX-8)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView, head_tokens, system_tokens, tools_tokens
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.tokens import tokens_of
from turnkeeper.models.transcript.model_call import RequestHead, ServerText, offered_tools
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Frozen

TURNS_A_PAGE = 500

Seen = Literal["verbatim", "truncated", "summarised", "refused", "retried", "not_at_all"]
"""How the model sees a turn.

`truncated`: some of its messages, or parts of them; `summarised`: in the summary only; `refused`: replaced by a note,
since the model's vendor refused it (CTX-7); `retried`: replaced by its retry (CTX-17).
"""


class TurnInContext(Frozen):
    """One turn of the transcript, `number` from 1. The id is null if the turn is in the archive and not in the view."""

    number: int
    message_id: str | None = None
    seen: Seen
    estimated_tokens: int = 0
    """Total for the messages that the model sees."""
    characters_cut: int = 0
    """Characters of a truncated, refused or retried turn that the model no longer sees.

    Those of some scripts count several times, as in the estimate of tokens.
    """


class FixedPart(Frozen):
    """The part of every request before the messages."""

    system_prompt_tokens: int
    tools: list[str]
    tools_not_offered: list[str] = []
    """The `tools` that the model is not offered, since its API has a limit."""
    tools_tokens: int
    estimated_tokens: int


class SummaryInContext(Frozen):
    """The summary of evicted messages. `turns` are inclusive ranges of turn numbers."""

    text: str
    turns: list[tuple[int, int]]
    files_written: list[str]
    estimated_tokens: int


class ContextView(Frozen):
    """The model's current view. Tokens are estimates, within about 20 % (CTX-6).

    `turns` are oldest first; with `has_more` there are older ones: ask again with `before` set to the first number.
    """

    segment: int
    message_count: int
    max_messages: int
    """The present cap of the window; 0: none."""
    max_tokens: int | None = None
    """The maximum that is sent, with the fixed part, learned from an overflow; null: no limit.

    It is for this model and this configuration of the window (CTX-7).
    """
    estimated_tokens: int
    """Total for the whole request, with the fixed part."""
    reported_tokens: int | None = None
    """The same by the vendor's count at the last call of this segment, plus an estimate of later messages."""
    fixed: FixedPart
    summary: SummaryInContext | None = None
    messages_awaiting_summary: int = 0
    summaries_failed: int = 0
    messages_given_up: int = 0
    """Evicted messages that will be in no summary, since too many were waiting for one."""
    absent_tool_servers: list[ServerText] = []
    """Servers whose tools the model does not have, or only as they were, and why."""
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
    absent: Sequence[ServerText] = (),
    before: int | None = None,
    limit: int = TURNS_A_PAGE,
) -> ContextView:
    """Return what the model sees of the newest `limit` turns, or of those before turn number `before`."""
    end = min(transcript.count, transcript.count if before is None else before - 1)
    first = max(1, end - limit + 1)
    fixed, view = fixed_part(head, model=model), context.view
    return ContextView(
        segment=view.segment,
        message_count=view.message_count,
        max_messages=config.max_messages,
        max_tokens=context.max_tokens(config, model=model),
        estimated_tokens=fixed.estimated_tokens + view.estimated_tokens,
        reported_tokens=context.reported_tokens,
        fixed=fixed,
        summary=_summary(view),
        messages_awaiting_summary=sum(len(entry.messages) for entry in context.evicted.entries),
        summaries_failed=context.evicted.summaries_failed,
        messages_given_up=context.evicted.given_up,
        absent_tool_servers=list(absent),
        turns=_turns(context, transcript, range(first, end + 1)),
        has_more=first > 1,
    )


def _turns(context: ModelContext, transcript: Transcript, numbers: range) -> list[TurnInContext]:
    chars, ids, replaced = Counter[int](), dict[int, str](), dict[int, Seen]()
    for entry in context.view.entries:
        number = entry.ref.number
        chars[number] += entry.chars
        ids[number] = entry.ref.turn
        if entry.ref.note in ("refused", "earlier_try"):
            replaced[number] = "refused" if entry.ref.note == "refused" else "retried"
        replaced |= dict.fromkeys(range(number - entry.ref.retried, number), "retried")
    covered = context.view.summary.turns if context.view.summary else []
    return [
        TurnInContext(
            number=number,
            message_id=ids.get(number) or transcript.id_of(number),
            seen=replaced.get(number) or _seen(number, is_shown=number in chars, cut=context.cut, covered=covered),
            estimated_tokens=tokens_of(chars[number]),
            characters_cut=context.cut.get(number, 0),
        )
        for number in numbers
    ]


def _seen(number: int, *, is_shown: bool, cut: dict[int, int], covered: Iterable[tuple[int, int]]) -> Seen:
    if is_shown:
        return "truncated" if cut.get(number) else "verbatim"
    return "summarised" if any(first <= number <= last for first, last in covered) else "not_at_all"


def fixed_part(head: RequestHead, *, model: str) -> FixedPart:
    """Return the part of every request of `model` before the messages."""
    offered = {tool.name for tool in offered_tools(head.tools, model=model)}
    return FixedPart(
        system_prompt_tokens=system_tokens(head),
        tools=[tool.name for tool in head.tools],
        tools_not_offered=[tool.name for tool in head.tools if tool.name not in offered],
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
