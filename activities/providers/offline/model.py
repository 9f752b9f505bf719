"""The offline model: real behaviour without a key and without a network (AGT-4).

The model is a function of the request and has no state. At every step of a turn the handlers of all intents in the
newest user message run from their beginning, as Temporal replays a workflow: a call that already has its result returns
it, any other is made now. Once every handler has returned, the answer is complete. Handlers are finite and a failed
call is an outcome like any other, so a turn always ends.

The offline model's summary of a conversation, from the conversation's own sentences (CTX-5).

It lists what the user stated, what was asked and answered, and what went wrong. An earlier summary is parsed and
included. If a section is too long, its oldest lines are dropped.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence

from turnkeeper.activities.providers.offline.handlers import (
    Conversation,
    facts_in,
    find_intents,
    run_intents,
    shorten,
)
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.models.context.summary import INSTRUCTION, SUMMARY_MARK
from turnkeeper.models.replay_text.grammar import (
    HISTORY,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    UserEvent,
    parse_replay,
)
from turnkeeper.models.tokens import CHARS_PER_TOKEN, estimate_tokens, tokens_of, weighted_chars
from turnkeeper.models.transcript.model_call import CallPart, ModelRequest, ModelResponse, Part, RespondPart, ThinkPart
from turnkeeper.models.transcript.trajectory import Usage

FACTS, EXCHANGES, PROBLEMS = "What the user said:", "What was asked and answered:", "What went wrong:"

SECTIONS = {FACTS: 2_000, EXCHANGES: 1_000, PROBLEMS: 300}
"""Maximum characters of each section's lines."""

_HEADER = re.compile(f"^({'|'.join(map(re.escape, SECTIONS))})$", re.MULTILINE)
_FILES = re.compile(r"^Files written: .*\Z", re.MULTILINE | re.DOTALL)
_FAILED = re.compile(r"\b(?:failed|error|denied|not exist|unknown|cancelled|not called)\b", re.IGNORECASE)


def summary_of(request: ModelRequest) -> str:
    """Return a summary of the conversation that `request` gives as replay text."""
    content = request.messages[-1].content
    # Nothing in the text before it can look like its header.
    header = re.search(f"^{re.escape(HISTORY)}$", content, re.MULTILINE)
    events, _ = parse_replay(content[header.start() :] if header else "")
    lines: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for event in events:
        _add_event(lines, event)
    summary: list[str] = []
    for section, max_chars in SECTIONS.items():
        newest = _newest(lines[section], max_chars)
        summary += [section, *(f"- {line}" for line in newest)] if newest else []
    return "\n".join(summary)


def _add_event(lines: Mapping[str, list[str]], event: ReplayEvent) -> None:
    match event:
        case RespondEvent(content=text) if text.startswith(SUMMARY_MARK):
            _add_summary(lines, text.removeprefix(SUMMARY_MARK))
        case RespondEvent(content=text):
            lines[EXCHANGES].append(f"answered: “{shorten(text, 80)}”")
        case UserEvent(content=text):
            facts = facts_in(text)
            lines[FACTS].extend(shorten(fact, 300) for fact in facts)
            if not facts:
                lines[EXCHANGES].append(f"asked: “{shorten(text, 80)}”")
        case ResultEvent(outcome=outcome) if _FAILED.search(outcome):
            lines[PROBLEMS].append(shorten(outcome, 120))


def _add_summary(lines: Mapping[str, list[str]], summary: str) -> None:
    """Add an earlier summary; what stands in no section of ours are facts."""
    facts, *sections = _HEADER.split(_FILES.sub("", summary))
    for section, text in [(FACTS, facts), *zip(sections[::2], sections[1::2], strict=True)]:
        stripped = (line.strip(" -") for line in text.splitlines())
        lines[section].extend(line for line in stripped if line)


def _newest(lines: Sequence[str], max_chars: int) -> list[str]:
    """Return the newest of the lines, each once, that fit."""
    newest: list[str] = []
    for line in reversed(list(dict.fromkeys(lines))):
        max_chars -= len(line)
        if max_chars < 0:
            break
        newest.append(line)
    return newest[::-1]


ABILITIES = (
    "I am the built-in demo model: I can read, list, search and write files, tell the time and remember facts. "
    "Try “write hello to greeting.txt”, “read greeting.txt” or “what time is it?”."
)
"""The answer if no phrase matches."""

ATTACHED = "You attached {names}. I can name attachments, but I can't look into them."
"""Follows the answer, or comes before what the model can do."""


TextOf = Callable[[ModelRequest], str]

_texts: dict[str, TextOf] = {INSTRUCTION: summary_of}
"""How requests are answered that are no conversation, by their system prompt."""


def use_texts(texts: Mapping[str, TextOf]) -> None:
    """Answer a feature's own requests too."""
    _texts.update(texts)


class OfflineModel:
    """The model behind `offline:`."""

    def __init__(self, *, words_per_second: float = 0.0) -> None:
        """Write at `words_per_second`; 0 writes everything at once."""
        self._pause = 1 / words_per_second if words_per_second > 0 else 0.0

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Yield the answer word by word, thinking first, then the whole response."""
        response = answer(request, number=info.request)
        async for delta in deltas_of(response.parts, pause=self._pause):
            yield delta
        yield response


def answer(request: ModelRequest, *, number: int = 1) -> ModelResponse:
    """Answer the newest user message, or make the calls that the answer needs. Ids are made from `number`.

    >>> from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead
    >>> texts = ["Remember that the code is 4711.", "What is the code?"]
    >>> messages = [ModelMessage(role="user", content=text) for text in texts]
    >>> answer(ModelRequest(head=RequestHead(), messages=messages)).text
    'You told me: the code is 4711.'
    """
    if text_of := _texts.get(request.head.system):
        return respond(request, [RespondPart(kind="respond", text=text_of(request))], number=number)
    conversation = Conversation(request)
    intents = find_intents(conversation.request)
    sentences, uses = run_intents(intents, conversation)
    if uses:
        purposes = shorten(", ".join(use.purpose for use in uses), 200)
        thought = f"I was asked: “{shorten(conversation.request, 80)}”. Before I can answer, I have to {purposes}."
    elif intents:
        thought = "I have all that I need. I answer with what I was shown, and nothing beyond it."
    else:
        thought = "I do not understand this. I say what I can do."
    parts: list[Part] = [ThinkPart(kind="think", text=thought)]
    for index, use in enumerate(uses):
        parts.append(CallPart(kind="call", id=f"call_{number}_{index}", name=use.tool, args=dict(use.args)))
    if not uses:
        if conversation.attachments:
            sentences.append(ATTACHED.format(names=", ".join(conversation.attachments)))
        if not intents:
            sentences.append(ABILITIES)
        parts.append(RespondPart(kind="respond", text="\n\n".join(sentences) or ABILITIES))
    return respond(request, parts, number=number)


def respond(request: ModelRequest, parts: Sequence[Part], *, number: int, model: str = "offline") -> ModelResponse:
    """Return the response with `parts`, with estimated usage.

    Input tokens are estimated only from the system prompt and the text of messages: encoding tools and calls as JSON
    would cost more than everything else here.
    """
    max_chars = None if request.head.max_tokens is None else request.head.max_tokens * CHARS_PER_TOKEN
    allowed_parts = [  # cut to what was allowed, as a vendor does
        part.model_copy(update={"text": part.text[:max_chars]}) if isinstance(part, RespondPart) else part
        for part in parts
    ]
    texts = [request.head.system, *(message.content for message in request.messages)]
    response = ModelResponse(parts=allowed_parts, model=model, request_id=f"offline_{number}")
    reasoning = estimate_tokens([{"content": response.thinking}])
    usage = Usage(
        input_tokens=tokens_of(sum(map(weighted_chars, texts))),
        output_tokens=reasoning + estimate_tokens([{"content": response.text, "tool_calls": response.calls}]),
        reasoning_tokens=reasoning,
        cost=0.0,  # free
    )
    stop = "max_tokens" if allowed_parts != list(parts) else "tool_calls" if response.calls else "end_turn"
    return response.model_copy(update={"usage": usage, "stop": stop})


async def deltas_of(parts: Iterable[Part], *, pause: float) -> AsyncIterator[Delta]:
    """Yield `parts` word by word, with `pause` seconds after each word; of a call, its name."""
    for part in parts:
        for piece in [part.name] if isinstance(part, CallPart) else re.findall(r"\S+\s*|\s+", part.text):
            yield Delta(part.kind, piece)
            if pause:
                await asyncio.sleep(pause)
