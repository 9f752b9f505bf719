"""How messages and tokens grow over 20 turns, with and without window and summaries: makes `docs/growth.md` (CTX-4).

`python -m benchmarks.growth` writes the page; a test compares it with what the rules give. It runs the session's own
rules, without Temporal, with a conversation of fixed sizes and the offline model's summaries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.models.context.summary import summary_request
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.running_turn import number_calls
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, RespondPart, SummaryOutcome

PAGE = Path(__file__).parents[1] / "docs" / "growth.md"
NOW = datetime(2026, 1, 1, tzinfo=UTC)

TURNS = 20
CALLS = 8
"""Tool calls of a turn, one a step: a typical task has 5 to 10."""

PROMPT_CHARS, CALL_CHARS, RESULT_CHARS, ANSWER_CHARS = 400, 200, 2_000, 800
"""Characters of a prompt, of a call's arguments, of a result and of an answer."""

WINDOWS = {
    "no window": ConversationHistoryConfig(max_messages=0),
    "window": ConversationHistoryConfig(),
    "window and summaries": ConversationHistoryConfig(summarize_on_trim=True),
}


@dataclass(frozen=True)
class Size:
    """A turn's newest request, in messages and estimated tokens, and the input tokens of all its requests."""

    messages: int
    tokens: int
    input_tokens: int


def sizes(window: ConversationHistoryConfig, *, calls: int = CALLS, turns: int = TURNS) -> list[Size]:
    """Return the size of each turn of a conversation under this window."""
    session = Session("s1", SessionInput(history=window), now=NOW)
    return [_run_turn(session, number, calls) for number in range(1, turns + 1)]


def _run_turn(session: Session, number: int, calls: int) -> Size:
    now = NOW + timedelta(minutes=number)
    text = _text(f"Prompt {number}: the code of part {number} is {number * 37}.", PROMPT_CHARS)
    session.receive({"id": f"p{number}", "text": text}, extra_arguments=0, new_id=f"p{number}", now=now)
    session.begin_turn(now=now)
    requests = [_request(session, response, now) for response in _responses(number, calls)]
    turn = session.turn_slot.running().completed("done", now=now)
    session.end_turn(turn)
    return Size(*requests[-1], input_tokens=sum(tokens for _, tokens in requests))


def _request(session: Session, response: ModelResponse, now: datetime) -> tuple[int, int]:
    """Make room as before a model call, record the response, and return the messages and tokens of the request."""
    history, model = session.config.history, session.config.model
    session.context.evict(history, model=model, head=session.head, max_bytes=session.config.limits.view_bytes)
    if session.context.evicted.is_summary_due(history):
        _summarise(session, history)
    size = session.context.view.message_count, session.context.view.estimated_tokens
    slot = session.turn_slot
    parts = number_calls(response.calls, turn_number=session.transcript.count, step=slot.running().steps)
    slot.add_response(response, parts, now=now)
    for call in parts:
        session.add_result(call.id, ToolResult(outcome=f"Read {call.id}", content=_text("The file says", RESULT_CHARS)))
    slot.append_step_to_view(state=None)
    return size


def _summarise(session: Session, history: ConversationHistoryConfig) -> None:
    messages = session.context.messages_to_summarise()
    request = summary_request(messages, has_earlier=session.context.view.summary is not None)
    evicted = session.context.evicted.begin_summary()
    session.context.insert_summary(
        SummaryOutcome(text=answer(request).text),
        of=evicted,
        view_bytes=session.config.limits.view_bytes,
    )


def _responses(number: int, calls: int) -> Iterator[ModelResponse]:
    for index in range(calls):
        parts: list[Part] = [CallPart(kind="call", id=f"c{index}", name="file_read", args={"path": "x" * CALL_CHARS})]
        yield ModelResponse(parts=parts, stop="tool_calls", model="offline")
    text = _text(f"Answer {number}: all parts were read.", ANSWER_CHARS)
    yield ModelResponse(parts=[RespondPart(kind="respond", text=text)], model="offline")


def _text(beginning: str, chars: int) -> str:
    return (beginning + " and so on" * chars)[:chars]


def render() -> str:
    """Return the page."""
    columns = {name: sizes(window) for name, window in WINDOWS.items()}
    return "\n".join([*_head(), *_one_turn(), *_all_turns(columns), *_bill(columns)])


def _head() -> list[str]:
    return [
        "# How a conversation grows",
        "",
        "Made by `python -m benchmarks.growth` from the session's own rules; a test compares the two. A turn has one",
        f"prompt, {CALLS} tool calls one after the other, and an answer: {CALLS + 1} model calls. Prompts have",
        f"{PROMPT_CHARS} characters, arguments {CALL_CHARS}, results {RESULT_CHARS:,} and answers {ANSWER_CHARS}.",
        "Tokens are estimated, four characters each ([CTX-6](requirements.md)); system prompt and tools come on top,",
        "and the vendors' caches are not counted.",
        "",
    ]


def _one_turn() -> list[str]:
    return [
        "## Messages of one turn",
        "",
        "Each tool call adds two messages, the call and its result, which the model is sent with every later call.",
        "",
        f"| tool calls a turn | messages a turn | messages after {TURNS} turns | tokens of the last request |",
        "|---|---|---|---|",
        *(_row_of_calls(calls) for calls in (5, CALLS, 10)),
        "",
    ]


def _all_turns(columns: Mapping[str, list[Size]]) -> list[str]:
    return [
        f"## Over {TURNS} turns",
        "",
        "The newest request of each turn: without a window, with the default window (100 messages, of which 35 are",
        "evicted at once), and with that window and summaries.",
        "",
        f"| turn | {' | '.join(f'messages, {name} | tokens, {name}' for name in WINDOWS)} |",
        f"|---|{'---|---|' * len(WINDOWS)}",
        *(_row_of_turn(number, [column[number - 1] for column in columns.values()]) for number in range(1, TURNS + 1)),
        "",
    ]


def _bill(columns: Mapping[str, list[Size]]) -> list[str]:
    total = {name: sum(size.input_tokens for size in column) for name, column in columns.items()}
    return [
        "## What that means for the bill",
        "",
        "Every model call sends the conversation again, so without a window the sum grows with the square of the",
        "number of turns.",
        "",
        f"| | input tokens of all {TURNS * (CALLS + 1)} calls | of those without a window |",
        "|---|---|---|",
        *(f"| {name} | {tokens:,} | {tokens / total['no window']:.0%} |" for name, tokens in total.items()),
        "",
        "A summary costs one more call for each eviction, and a few hundred tokens in each request. It keeps what the",
        "window alone forgets.",
        "",
    ]


def _row_of_turn(number: int, columns: list[Size]) -> str:
    return f"| {number} | {' | '.join(f'{size.messages} | {size.tokens:,}' for size in columns)} |"


def _row_of_calls(calls: int) -> str:
    column = sizes(WINDOWS["no window"], calls=calls)
    return f"| {calls} | {2 * calls + 2} | {column[-1].messages + 1} | {column[-1].tokens:,} |"


if __name__ == "__main__":
    PAGE.write_text(render())
