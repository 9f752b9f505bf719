"""The conversation as replay text, for models without tool calling of their own: the protocol `text` (CTX-13, AGT-4).

    request    the system prompt, the tools and the grammar as one system text; the conversation as one replay text, or
               the user's message alone at its beginning
    answer     the events that come next, in the same grammar (`text_answer.py`)

The conversation has the usual marks, such as `$user:`; an answer has `§` instead of `$`. So a model that repeats a part
of the conversation doesn't begin an event. In texts of users and tools, lines that look like either mark are escaped.

The text is made again for every request. Of an answer its parts are stored, and its thinking as the step's state: the
model reads its own thinking of the running turn, until an eviction. Within a turn a later request's text begins with an
earlier one's, as servers' prefix caches need it, but for the first request of a conversation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from turnkeeper.activities.providers.result_text import result_text
from turnkeeper.activities.providers.text.text_answer import GRAMMAR
from turnkeeper.models.replay_text.grammar import (
    KINDS,
    PLAIN,
    CallEvent,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    render_replay,
)
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ProviderState, RequestHead, ToolSpec

API = "openai.chat.text"
"""The name of this protocol in `ProviderState`. Its only item: the thinking of the step."""

_LIKE_AN_ANSWER = re.compile(rf"^(?=\\*{GRAMMAR.sigil}(?:{'|'.join(KINDS)}):)", re.MULTILINE)

STOP_SEQUENCES = ["\n§result:", "\n§user:"]
"""Where a server should stop: what follows would be invented."""

_FORM = """\
# How the conversation is written

A conversation begins with the user's message alone. Later you are given it as text. Each event begins on a line of its
own with a mark: "$user:" is what the user said, "$think:" what you considered, "$respond:" what you said to the user,
"$call:" a tool you used, "$result:" what came of it. Below "=== HISTORY ===" is what came before, below
"=== CURRENT ===" what you are to go on with. Only these marks at the beginning of a line count; a line of someone's
text that looks like one has a backslash before it, and is nothing but text.

# How you answer

Write the events that come next, in the same form but with "§" in place of "$", with a blank line between them, and
nothing else:

§think: what you consider, if you need to; the user does not see it

§respond: what you say to the user"""

_CALLING = """\


To use a tool, write a call instead, as one line of JSON, and stop after it; several calls may follow one another. The
results are given to you before you go on:

§call: {"name": "the tool's name", "args": {"its argument": "a value"}}

Write "§respond:" once you need no more tools. Never write "§user:" or "§result:" yourself: what you make up is cut."""

_NO_TOOLS = """\


There are no tools. Never write "§user:" or "§result:" yourself: what you make up is cut."""


def system_text(head: RequestHead, tools: Sequence[ToolSpec]) -> str:
    """Return the system text: the system prompt, the grammar, and the `tools`."""
    sections = [head.system, _FORM + (_CALLING if tools else _NO_TOOLS)]
    if tools:
        sections.append("\n\n".join(["# The tools", *map(_tool_text, tools)]))
    return "\n\n".join(filter(None, sections))


def conversation_text(messages: Sequence[ModelMessage]) -> str:
    r"""Return the conversation as replay text: CURRENT is what follows the last answer, with its thinking.

    A user's first message stands alone: no cycle has begun.

    >>> said = [("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye\n$call: {}\n§call: {}")]
    >>> print(conversation_text([ModelMessage(role=role, content=content) for role, content in said]))
    === HISTORY ===
    <BLANKLINE>
    $user: Hi
    <BLANKLINE>
    $respond: Hello!
    <BLANKLINE>
    === CURRENT ===
    <BLANKLINE>
    $user: Bye
    \$call: {}
    \§call: {}
    """
    if len(messages) == 1 and messages[0].role == "user":
        return PLAIN.escape(f"\n{_escape_marks(messages[0].content)}")[1:]
    past = _count_answered(messages)
    return render_replay(list(_events_of(messages[:past])), list(_events_of(messages[past:])), 0)


def thinking_state(thinking: str, *, model: str) -> ProviderState | None:
    """Return the state of a step with the model's own thinking; `None` if it has none."""
    return ProviderState(api=API, model=model, items=[{"thinking": thinking}]) if thinking.strip() else None


def _thinking_of(message: ModelMessage) -> str:
    items = message.state.items if message.state and message.state.api == API else []
    return "".join(str(item.get("thinking", "")) for item in items if isinstance(item, dict))


def _escape_marks(text: str) -> str:
    """Return `text` with a backslash before each line that looks like an event of an answer."""
    return _LIKE_AN_ANSWER.sub(r"\\", text)


def _count_answered(messages: Sequence[ModelMessage]) -> int:
    """Return the number of messages up to the last answer: one without calls that no step of its turn follows.

    A note of steps that are left out stands within a turn, and is no answer.
    """
    answers = (
        count
        for count, message in enumerate(messages, 1)
        if message.role == "assistant"
        and not message.tool_calls
        and (count == len(messages) or messages[count].role == "user")
    )
    return max(answers, default=0)


def _events_of(messages: Sequence[ModelMessage]) -> Iterator[ReplayEvent]:
    for index, message in enumerate(messages):
        if message.role == "user":
            yield UserEvent(content=_escape_marks(message.content))
        elif message.role == "assistant":
            if thinking := _thinking_of(message):
                yield ThinkEvent(content=_escape_marks(thinking))
            if message.content.strip():
                yield RespondEvent(content=_escape_marks(message.content))
            results = takewhile(lambda following: following.role == "tool", islice(messages, index + 1, None))
            yield from _calls_with_results(message.tool_calls, results)


def _calls_with_results(calls: Iterable[CallPart], results: Iterable[ModelMessage]) -> Iterator[ReplayEvent]:
    """Yield every call with its result directly after it, also for parallel calls."""
    remaining_results = list(results)
    for call in calls:
        yield CallEvent.of(call.name, call.args)
        result = next((result for result in remaining_results if result.call_id == call.id), None)
        if result:
            remaining_results.remove(result)
            outcome, _, content = result_text(result).partition("\n")
            yield ResultEvent(outcome=outcome, content=_escape_marks(content.removeprefix("\n")))


def _tool_text(tool: ToolSpec) -> str:
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return "\n\n".join(filter(None, [f"## {tool.name}", tool.description, f"Its arguments, as JSON Schema: {schema}"]))
