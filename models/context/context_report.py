"""Makes the context view of a session from its transcript and the model's view of it (CTX-8)."""

from collections import Counter
from collections.abc import Iterable, Sequence

from turnkeeper.models.context.context_view import (
    ContextView,
    FixedPart,
    Seen,
    SummaryInContext,
    TurnInContext,
)
from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView, head_tokens, system_tokens, tools_tokens
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.tokens import tokens_of
from turnkeeper.models.transcript.model_call import RequestHead, ServerText, offered_tools
from turnkeeper.models.transcript.transcript import Transcript


def context_view(
    context: ModelContext,
    transcript: Transcript,
    head: RequestHead,
    config: ConversationHistoryConfig,
    *,
    model: str,
    absent: Sequence[ServerText] = (),
    before: int | None = None,
    limit: int,
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
