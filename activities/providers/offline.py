"""The offline model: real behaviour without a key and without a network (AGT-4).

Theory of operation. The model is a function of the request and keeps nothing between two calls. It holds the newest
user message against a table of phrases (`_PHRASES`); what it recognises becomes a list of *wishes*. A wish has a plan,
a generator that yields the tool calls it needs, is sent their outcomes, and returns what to say. At every step of a
turn all plans are replayed from their beginning against the results the turn already holds, as Temporal replays a
workflow:

    a call that has its result        the plan goes on with it
    a call that has none              is asked for now, together with those of the other wishes
    every plan has come to its end    what they returned is the answer

Plans are finite and a failed call is an outcome like any other, so a turn always ends. What a plan says about a file
or a fact is taken from a tool's result or from the conversation, never made up.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from activities.providers.protocol import CallContext, Delta
from models.context.tokens import estimate_tokens
from models.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    Part,
    ProviderState,
    RespondPart,
    ThinkPart,
    ToolSpec,
)
from models.trajectory import StopReason, ToolStatus, Usage

MEMORY = "memory.md"
"""The workspace file that keeps what the model was told to remember, beyond what it can still see."""

MOST_CHARS = 4_000
"""Longest request that is searched for phrases: the patterns' cost grows faster than the text."""

SHOWN_LINES = 6
"""Lines of a file that are quoted; of a listing or of search hits it is five times as many."""


class OfflineModel:
    """The model behind `offline:`."""

    def __init__(self, *, words_per_second: float = 0.0) -> None:
        """Write at `words_per_second`; 0 writes everything at once."""
        self._pause = 1 / words_per_second if words_per_second > 0 else 0.0

    async def stream(
        self, name: str, request: ModelRequest, context: CallContext
    ) -> AsyncIterator[Delta | ModelResponse]:
        """Write the answer word by word, thinking first, then the whole of it; never raises `ModelError`."""
        response = answer(request, number=context.request)
        async for delta in deltas_of(response.parts, pause=self._pause):
            yield delta
        yield response


def answer(request: ModelRequest, *, number: int = 1) -> ModelResponse:
    """Answer, or ask for the tool calls that the answer needs; `number` counts the session's requests, for ids.

    >>> from models.model_call import RequestHead
    >>> asked = ModelMessage(role="user", content="Remember that the code is 4711. What did I ask?")
    >>> answer(ModelRequest(head=RequestHead(), messages=[asked])).text.splitlines()[-1]
    'This is the first thing you asked that I can still see.'
    """
    scene = Scene(request)
    wishes = wishes_in(scene.asked)
    said, needed = _play(wishes, scene)
    if needed:
        aims = _listed([use.aim for use in needed])
        thought = f"I was asked: “{_short(scene.asked, 80)}”. To answer I first have to {aims}."
        calls = [
            CallPart(kind="call", id=f"call_{number}_{index}", name=use.tool, args=scene.arguments(use))
            for index, use in enumerate(needed)
        ]
        return respond(request, [ThinkPart(kind="think", text=thought), *calls], number=number)
    text = "\n\n".join(said) or _say_what_i_can_do(scene)
    thought = _closing_thought(scene, understood=bool(wishes))
    parts: list[Part] = [ThinkPart(kind="think", text=thought), RespondPart(kind="respond", text=text)]
    return respond(request, parts, number=number)


def respond(
    request: ModelRequest,
    parts: Sequence[Part],
    *,
    number: int,
    model: str = "offline",
    stop: StopReason | None = None,
    state: ProviderState | None = None,
) -> ModelResponse:
    """Make the whole response of `parts`, with estimated usage; `stop` follows from the calls where it is None."""
    response = ModelResponse(parts=list(parts), model=model, request_id=f"offline_{number}", state=state)
    reasoning = estimate_tokens([{"content": response.thinking}])
    usage = Usage(
        input_tokens=estimate_tokens(
            [{"content": request.head.system}, {"content": request.head.tools or None}, *request.messages]
        ),
        output_tokens=reasoning + estimate_tokens([{"content": response.text, "tool_calls": response.calls}]),
        reasoning_tokens=reasoning,
    )
    return response.model_copy(
        update={"usage": usage, "stop": stop or ("tool_calls" if response.calls else "end_turn")}
    )


async def deltas_of(parts: Sequence[Part], *, pause: float) -> AsyncIterator[Delta]:
    """Write `parts` word by word, `pause` seconds after each; a call is announced by its name."""
    for part in parts:
        pieces = [part.name] if isinstance(part, CallPart) else re.findall(r"\s*\S+|\s+\Z", part.text)
        for piece in pieces:
            yield Delta(part.kind, piece)
            if pause:
                await asyncio.sleep(pause)


# ---- what the model looks at


@dataclass(frozen=True)
class Use:
    """A tool call that a plan needs. `args` are in our own words, `aim` completes "I could not ..."."""

    tool: str
    aim: str
    args: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a use came to: the result's one `line` for people, and its `content`."""

    use: Use
    line: str
    content: str = ""
    status: ToolStatus = "ok"

    @property
    def failure(self) -> str | None:
        """A sentence that says what did not work; None where it did."""
        return None if self.status == "ok" else _FAILURES[self.status].format(aim=self.use.aim, why=_ended(self.line))

    @property
    def lines(self) -> list[str]:
        """The content's lines; a newline at its end opens no further one."""
        return self.content.removesuffix("\n").split("\n") if self.content else []

    @property
    def is_cut(self) -> bool:
        """The tool or the session says that this is not the whole content (CTX-14)."""
        return any(_CUT.search(line) for line in [self.line, *filter(_MARK.match, self.lines)])

    @property
    def is_absent(self) -> bool:
        """There is no such file, as opposed to one that could not be read."""
        return self.status == "error" and bool(_ABSENT.search(self.line))


_FAILURES: Mapping[ToolStatus, str] = {
    "error": "I could not {aim}: {why}",
    "denied": "I was not allowed to {aim}: {why}",
    "cancelled": "I was stopped before I could {aim}: {why}",
    "outcome_unknown": "I do not know whether I managed to {aim}: {why}",
}
_CUT = re.compile(r"\b(?:cut|truncated|omitted|left out|not shown|removed|gone)\b", re.IGNORECASE)
_MARK = re.compile(r"[\[(<….]")
_ABSENT = re.compile(r"not exist|no such|not found|no file|missing", re.IGNORECASE)

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file", "file_path", "filename", "directory", "dir", "folder"),
    "query": ("query", "pattern", "text"),
    "content": ("content", "text"),
    "description": ("description", "task", "prompt"),
}
"""Our words for a tool's parameters, and what they may be called in its schema."""

_CONTEXT_RULE = re.compile(r"^={10,}$", re.MULTILINE)
"""Opens the context that a task was given with its request (TSK-3): facts to look up, no orders to follow."""


class Scene:
    """The conversation as the model reads it: the newest request, what came before it, and this turn's results."""

    def __init__(self, request: ModelRequest) -> None:
        """Read `request`."""
        messages = request.messages
        newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
        self.tools = {tool.name: tool for tool in request.head.tools}
        self.earlier = messages[:newest]
        self.turn = messages[newest:]
        self.asked, self.context = _parted(messages[newest] if messages else ModelMessage(role="user"))

    def arguments(self, use: Use) -> dict[str, str]:
        """Name the arguments as the tool's schema does; one that it does not know is left out."""
        return _arguments(self.tools[use.tool], use.args)

    @property
    def files_read(self) -> list[tuple[str, Outcome]]:
        """The files whose content is in the conversation, oldest first; our own memory is not one of them."""
        read = [
            (_path_in(call), _outcome(_reading(_path_in(call)), result))
            for call, result in _exchanges([*self.earlier, *self.turn])
            if call.name == "file_read"
        ]
        return [(path, outcome) for path, outcome in read if outcome.status == "ok" and path not in ("", MEMORY)]

    @property
    def requests(self) -> list[str]:
        """What the user wrote before the newest message, oldest first."""
        return [_parted(message)[0].strip() for message in self.earlier if message.role == "user"]

    @property
    def answers(self) -> list[str]:
        """What the model answered before the newest message, oldest first."""
        return [message.content for message in self.earlier if message.role == "assistant" and message.content]

    @property
    def noted(self) -> list[str]:
        """What the user told the model to remember, oldest first."""
        wishes = [wish for request in self.requests for wish in wishes_in(request)]
        return [wish.fact for wish in wishes if isinstance(wish, Remember)]

    def told_about(self, topic: str) -> str | None:
        """Quote the newest statement about `topic` from the most trustworthy source that has one."""
        contexts = [_parted(message)[1] for message in self.earlier if message.role == "user"]
        sources = [
            ("You told me", [*self.noted, *_statements(self.requests)]),
            ("The context I was given says", _statements([*contexts, self.context])),
            ("Earlier in our conversation it says", _statements(self.answers)),
            *((f"{path} says", outcome.lines) for path, outcome in reversed(self.files_read)),
        ]
        for source, statements in sources:
            found = _about(topic, statements)
            if found:
                return f"{source}: {_ended(_short(found[-1], 300))}"
        return None


class _Results:
    """The results of this turn's calls, each of which serves one use: a repeated use is a call of its own."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._left = list(_exchanges(scene.turn))

    def take(self, use: Use) -> Outcome | None:
        """Return the outcome of `use`; None where the call is still to be made."""
        if use.tool not in self._scene.tools:
            return Outcome(use, f"the tool {use.tool} is not available here", status="error")
        arguments = self._scene.arguments(use)
        for index, (call, result) in enumerate(self._left):
            if (call.name, call.args) == (use.tool, arguments):
                del self._left[index]
                return _outcome(use, result)
        return None


def _parted(message: ModelMessage) -> tuple[str, str]:
    """Part a user message into the request and the context it was given."""
    request, *context = _CONTEXT_RULE.split(message.content, maxsplit=1) if message.role == "user" else [""]
    return request, "".join(context)


def _exchanges(messages: Sequence[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with their results; only with those that follow at once, since a vendor's call ids can repeat."""
    calls: dict[str, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message


def _outcome(use: Use, result: ModelMessage) -> Outcome:
    line, _, content = result.content.partition("\n\n")
    return Outcome(use, line.partition("\n")[0], content, result.status or "ok")


def _arguments(tool: ToolSpec, wanted: Mapping[str, str]) -> dict[str, str]:
    known = tool.input_schema.get("properties")
    if not isinstance(known, dict):
        return dict(wanted)
    named = {next((name for name in _PARAMETERS[word] if name in known), ""): value for word, value in wanted.items()}
    return {name: value for name, value in named.items() if name}


def _path_in(call: CallPart) -> str:
    given = call.args if isinstance(call.args, dict) else {}
    return next((str(given[name]) for name in _PARAMETERS["path"] if name in given), "")


# ---- wishes and their plans

Plan = Generator[list[Use], list[Outcome], str]
"""Yields the uses it needs, is sent their outcomes in the same order, returns what to say."""


class Wish(ABC):
    """Something the user wants."""

    changes: ClassVar[bool] = False
    """It changes the world, so it waits for what was asked before it, and what was asked after it waits for it."""

    @abstractmethod
    def plan(self, scene: Scene) -> Plan:
        """Begin the plan that fulfils the wish."""


@dataclass(frozen=True)
class LookUp(Wish):
    """One call, and what to say of its outcome."""

    use: Use
    tell: Callable[[Outcome], str]

    def plan(self, scene: Scene) -> Plan:
        """Make the call and tell what came of it."""
        [outcome] = yield [self.use]
        return outcome.failure or self.tell(outcome)


@dataclass(frozen=True)
class Change(LookUp):
    """One call that changes something."""

    changes = True


@dataclass(frozen=True)
class LookBack(Wish):
    """A question that the conversation itself answers."""

    tell: Callable[[Scene], str]

    def plan(self, scene: Scene) -> Plan:
        """Answer without any call."""
        yield from ()
        return self.tell(scene)


@dataclass(frozen=True)
class Read(Wish):
    """Questions about files; without `paths` about the file that was read last."""

    paths: tuple[str, ...]
    questions: tuple[Callable[[str, Outcome], str], ...]

    def plan(self, scene: Scene) -> Plan:
        """Read the files anew, all at once, and answer each question about each."""
        if self.paths:
            outcomes = yield [_reading(path) for path in self.paths]
            files = list(zip(self.paths, outcomes, strict=True))
        else:
            files = scene.files_read[-1:]
        if not files:
            return "I have read no file in this conversation yet that I could answer this from. Name one, please."
        return "\n\n".join(
            outcome.failure or question(path, outcome)
            for path, outcome in files
            for question in (self.questions[:1] if outcome.failure else self.questions or (_tell_beginning,))
        )


@dataclass(frozen=True)
class Remember(Wish):
    """A fact to keep, also when the conversation can no longer be seen."""

    fact: str
    changes = True

    def plan(self, scene: Scene) -> Plan:
        """Add the fact to the memory file, unless it stands there already; never write over what could not be read."""
        line = f"- {self.fact}"
        [memory] = yield [_reading(MEMORY)]
        if memory.failure and not memory.is_absent:
            return f"{memory.failure} {_IN_CONVERSATION_ONLY}"
        if memory.is_cut:
            return f"I was shown only a part of {MEMORY}, so I do not write over it. {_IN_CONVERSATION_ONLY}"
        kept = [] if memory.is_absent else memory.lines
        if line not in kept:
            content = "\n".join([*kept, line, ""])
            [written] = yield [_writing(MEMORY, content)]
            if written.failure:
                return f"{written.failure} {_IN_CONVERSATION_ONLY}"
        return f"I will remember: {_ended(self.fact)} It is noted in {MEMORY}."


_IN_CONVERSATION_ONLY = "I know it only for as long as I can see this conversation."


@dataclass(frozen=True)
class Recall(Wish):
    """A question about what was said before; without `topic` about everything that is to be remembered."""

    topic: str

    def plan(self, scene: Scene) -> Plan:
        """Answer from the conversation, and only if it holds nothing from the memory file."""
        told = scene.told_about(self.topic) if self.topic else _tell_noted(scene.noted)
        if told:
            return told
        [memory] = yield [_reading(MEMORY)]
        found = [] if memory.failure else _about(self.topic, memory.lines)
        if found:
            return f"{MEMORY} says:\n\n{_quoted(found, most=5 * SHOWN_LINES)}"
        about = f" about “{_short(self.topic, 80)}”" if self.topic else " that I was to remember"
        return f"I find nothing{about}, neither in this conversation nor in {MEMORY}, and offline I know nothing else."


def _play(wishes: Sequence[Wish], scene: Scene) -> tuple[list[str], list[Use]]:
    """Replay all plans; return what the finished ones say, and the uses that come next."""
    results = _Results(scene)
    said: list[str] = []
    needed: list[Use] = []
    for wish in wishes:
        if wish.changes and needed:
            break
        told, missing = _replay(wish.plan(scene), results)
        said += told
        needed += missing
        if wish.changes and missing:
            break
    return said, needed


def _replay(plan: Plan, results: _Results) -> tuple[list[str], list[Use]]:
    """Lead a plan as far as the results go: to what it says, or to the uses that have no outcome yet."""
    try:
        uses = next(plan)
        while True:
            taken = [(use, results.take(use)) for use in uses]
            missing = [use for use, outcome in taken if outcome is None]
            if missing:
                return [], missing
            uses = plan.send([outcome for _, outcome in taken if outcome is not None])
    except StopIteration as end:
        return [end.value], []


def _reading(path: str) -> Use:
    return Use("file_read", f"read {path}", {"path": path})


def _writing(path: str, content: str) -> Use:
    return Use("file_write", f"write {path}", {"path": path, "content": content})


# ---- what is said


def _tell_beginning(path: str, outcome: Outcome) -> str:
    lines = outcome.lines
    if not lines:
        return f"{path} is empty."
    opening = f"{path} says" if len(lines) <= SHOWN_LINES else f"{_tell_line_count(path, outcome)} It begins"
    return f"{opening}:\n\n{_quoted(lines, most=SHOWN_LINES)}"


def _tell_heading(path: str, outcome: Outcome) -> str:
    is_code = False
    for line in outcome.lines:
        if line.startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code and re.match(r"#{1,6}[ \t]", line) and line.strip("# \t\r"):
            return f"The first heading of {path} is “{_short(line.strip('# \t\r'), 200)}”."
    return f"I see no Markdown heading in {'the part I was shown of ' if outcome.is_cut else ''}{path}."


def _tell_line_count(path: str, outcome: Outcome) -> str:
    count = len(outcome.lines)
    lines = f"{count} line{'' if count == 1 else 's'}"
    return f"I was shown only a part of {path}, {lines}." if outcome.is_cut else f"{path} has {lines}."


def _tell_first_line(path: str, outcome: Outcome) -> str:
    return f"The first line of {path} is:\n\n{_quoted(outcome.lines, most=1)}" if outcome.lines else f"{path} is empty."


def _tell_last_line(path: str, outcome: Outcome) -> str:
    if outcome.is_cut:
        return f"I was shown only a part of {path}, so I cannot tell its last line."
    written = [line for line in outcome.lines if line.strip()]
    return f"The last line of {path} is:\n\n{_quoted(written[-1:], most=1)}" if written else f"{path} is empty."
