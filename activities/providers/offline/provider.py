"""The provider `offline`: a model with real behaviour, without a key and without a network, and scripts (AGT-4).

The model is a function of the request and has no state. At every step of a turn the handlers of all intents in the
newest user message run from their beginning, as Temporal replays a workflow: a call that already has its result returns
it, any other is made now. Once every handler has returned, the answer is complete. Handlers are finite and a failed
call is an outcome like any other, so a turn always ends.

Its summary of a conversation is made of the conversation's own sentences (CTX-5). It lists what the user stated, what
was asked and answered, and what went wrong. An earlier summary is parsed and included. If a section is too long, its
oldest lines are dropped.

A script plays back responses, delays and faults, for tests and demos. It is a JSON file in the worker's script folder.
The session's first model request gets the first response, the second the second, and so on, including requests for
summaries. The response depends only on the request's number, so a retry after a crash, even by another worker, gets the
same response. Whether its fault still occurs depends on the number of attempts and waits in the `CallInfo`, so nothing
is counted here.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from turnkeeper.activities.providers.offline.handlers import Conversation, facts_in, find_intents, run_intents, shorten
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider, Vendor
from turnkeeper.models.context.summary import INSTRUCTION, SUMMARY_MARK
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.replay_text.grammar import (
    HISTORY,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    UserEvent,
    parse_replay,
)
from turnkeeper.models.session.prompts import sentence_for
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.texts import CHARS_PER_TOKEN, estimate_tokens, tokens_of, weighted_chars
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import CallPart, ModelRequest, ModelResponse, Part, RespondPart, ThinkPart
from turnkeeper.models.wire import Strict

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


Seconds = Annotated[float, Field(ge=0, le=3_600)]


class ScriptedCall(Strict):
    """A tool call. `args` is a string if the arguments are not a JSON object; without an `id`, one is generated."""

    name: str
    args: dict[str, JsonValue] | str = {}
    id: str | None = None


class ScriptedFault(Strict):
    """A failure of the first `times` attempts, after `after_chunks` pieces of the answer.

    After the workflow has waited, the activity's attempts start at 1 again, and each wait counts as an attempt.
    """

    error_type: Literal[ErrorType, "stale_reasoning"]
    times: int = Field(1, ge=1)
    message: str = "the script says so"
    retry_after: Seconds | None = None
    after_chunks: int = Field(0, ge=0)

    def fails(self, *, attempt: int, waits: int) -> bool:
        """Return whether the attempt (from 1) fails, after `waits` waits of the workflow.

        >>> fault = ScriptedFault(error_type="overloaded", times=2)
        >>> [fault.fails(attempt=attempt, waits=waits) for attempt, waits in [(2, 0), (3, 0), (1, 1), (1, 2)]]
        [True, False, True, False]
        """
        return attempt + waits <= self.times


class ScriptedResponse(Strict):
    """One answer; `{request}` and `{last_user}` in its texts become the request's number and the newest user message.

    `delay` is the pause before the answer, `chunk_delay` that after each piece, both in seconds. `cut`: the stream ends
    before its final event.
    """

    think: str | None = None
    text: str | None = None
    calls: list[ScriptedCall] = []
    delay: Seconds = 0
    chunk_delay: Seconds = 0
    fault: ScriptedFault | None = None
    cut: bool = False


class Script(Strict):
    """The responses of a session, in order. With `repeat` the first follows the last."""

    responses: list[ScriptedResponse] = Field(min_length=1)
    repeat: bool = False

    def response_to(self, request: int) -> ScriptedResponse | None:
        """Return the response to the session's model request number `request` (from 1); `None` after the end."""
        index = (request - 1) % len(self.responses) if self.repeat else request - 1
        return self.responses[index] if index < len(self.responses) else None


class ScriptedModel:
    """Plays `folder`/NAME.json for the model `script/NAME`, and `folder`/default.json for `script`."""

    def __init__(self, folder: Path) -> None:
        """Play the scripts in `folder`. A script is loaded again when its file has changed."""
        self._folder = folder
        self._cache: dict[Path, tuple[tuple[int, int] | None, Script]] = {}

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Play the response to this request. Raises `ModelError` if the script says so, or there is no response."""
        path = self._path_of(name)
        script = await self._script(path)
        response = script.response_to(info.request)
        if response is None:
            raise ModelError("bad_request", f"the script {path.name!r} is at its end after {len(script.responses)}")
        await asyncio.sleep(response.delay)
        parts = _parts_of(response, request, info)
        fault = response.fault
        if fault and not fault.fails(attempt=info.attempt, waits=info.waits):
            fault = None
        chunks = 0
        async for delta in deltas_of(parts, pause=response.chunk_delay):
            if fault and chunks >= fault.after_chunks:
                break
            yield delta
            chunks += 1
        if fault:
            raise ModelError(fault.error_type, fault.message, retry_after=fault.retry_after)
        if not response.cut:
            yield respond(request, parts, model=name, number=info.request)

    def _path_of(self, name: str) -> Path:
        # The pattern also prevents access to files outside the folder.
        match = re.fullmatch(r"script(?:/([A-Za-z0-9_-]{1,64}))?", name)
        if not match:
            raise ModelError("bad_request", f"{name!r} is not script/NAME, the NAME 1 to 64 letters, digits, _ or -")
        return self._folder / f"{match[1] or 'default'}.json"

    async def _script(self, path: Path) -> Script:
        version = _version_of(path)  # before reading, so that a change meanwhile is seen the next time
        cached_version, script = self._cache.get(path, (None, None))
        if script is None or version is None or version != cached_version:
            # A thread only for reading: it costs more than a whole answer, while `stat` costs next to nothing.
            script = await asyncio.to_thread(_load, path)
            self._cache[path] = version, script
        return script


def _version_of(path: Path) -> tuple[int, int] | None:
    """Return a value that differs after every change of the file; `None` if the file can't be accessed."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _load(path: Path) -> Script:
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError("not_found", f"there is no offline script {path.stem!r} in the script folder") from error
    except OSError as error:
        raise ModelError("bad_request", f"the script {path.name!r} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ModelError("bad_request", f"the script {path.name!r} is malformed: {sentence_for(error)}") from error


def _parts_of(response: ScriptedResponse, request: ModelRequest, info: CallInfo) -> list[Part]:
    newest = next((message.content for message in reversed(request.messages) if message.role == "user"), "")

    def fill(text: str) -> str:
        # The user's words are filled in last, so that a placeholder in them is not replaced.
        return text.replace("{request}", str(info.request)).replace("{last_user}", newest)

    parts: list[Part] = []
    if response.think is not None:
        parts.append(ThinkPart(kind="think", text=fill(response.think)))
    if response.text is not None:
        parts.append(RespondPart(kind="respond", text=fill(response.text)))
    for index, call in enumerate(response.calls):
        call_id = call.id or f"call_{info.request}_{index}"
        parts.append(CallPart(kind="call", id=call_id, name=call.name, args=call.args))
    return parts


class OfflineProvider(Provider):
    """`offline:` is the offline model; `offline:script` and `offline:script/NAME` play a script."""

    vendor = Vendor(name="offline", title="the offline model", prices="")

    def __init__(self, model: OfflineModel, scripted: ScriptedModel) -> None:
        self._model = model
        self._scripted = scripted

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        model = OfflineModel(words_per_second=settings.offline_words_per_second)
        return cls(model, ScriptedModel(settings.scripts_dir))

    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            return self._model.stream(name, request, info)
        if name.partition("/")[0] == "script":
            return self._scripted.stream(name, request, info)
        raise ModelError("not_found", f"there is no offline model {name!r}; there are '', 'script' and 'script/NAME'")
