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
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
)
from models.trajectory import StopReason, ToolStatus, Usage

MEMORY = "memory.md"
"""The workspace file that keeps what the model was told to remember, beyond what it can still see."""

MOST_CHARS = 4_000
"""Longest request that is searched for phrases: the search costs more than in proportion to the text."""

SHOWN_LINES = 6
"""Lines of a file that are quoted."""

LISTED_LINES = 30
"""Lines of any other result that are quoted."""


class OfflineModel:
    """The model behind `offline:`."""

    def __init__(self, *, words_per_second: float = 0.0) -> None:
        """Write at `words_per_second`; 0 writes everything at once."""
        self._pause = 1 / words_per_second if words_per_second > 0 else 0.0

    async def stream(
        self, name: str, request: ModelRequest, context: CallContext
    ) -> AsyncIterator[Delta | ModelResponse]:
        """Write the answer word by word, thinking first, then yield the whole of it."""
        response = answer(request, number=context.request)
        async for delta in deltas_of(response.parts, pause=self._pause):
            yield delta
        yield response


def answer(request: ModelRequest, *, number: int = 1) -> ModelResponse:
    """Answer the newest user message, or ask for the calls its answer needs; `number`, the request's, makes the ids.

    >>> from models.model_call import RequestHead
    >>> said = ["Remember that the code is 4711.", "What is the code?"]
    >>> messages = [ModelMessage(role="user", content=text) for text in said]
    >>> answer(ModelRequest(head=RequestHead(), messages=messages)).text
    'You told me: the code is 4711.'
    """
    scene = Scene(request)
    wishes = wishes_in(scene.asked)
    said, needed = _play(wishes, scene)
    if needed:
        aims = ", ".join(use.aim for use in needed)
        thought = f"I was asked: “{_short(scene.asked, 80)}”. Before I can answer, I have to {_short(aims, 200)}."
        calls = [
            CallPart(kind="call", id=f"call_{number}_{index}", name=use.tool, args=dict(use.args))
            for index, use in enumerate(needed)
        ]
        return respond(request, [ThinkPart(kind="think", text=thought), *calls], number=number)
    thought = _closing_thought(scene, understood=bool(wishes))
    text = "\n\n".join(said) or _tell_abilities(scene)
    return respond(
        request, [ThinkPart(kind="think", text=thought), RespondPart(kind="respond", text=text)], number=number
    )


def respond(
    request: ModelRequest,
    parts: Sequence[Part],
    *,
    number: int,
    model: str = "offline",
    stop: StopReason | None = None,
    state: ProviderState | None = None,
) -> ModelResponse:
    """Make the whole response of `parts`, with estimated usage; without `stop`, that follows from the calls."""
    response = ModelResponse(parts=list(parts), model=model, request_id=f"offline_{number}", state=state)
    head = [{"content": request.head.system}, {"content": request.head.tools or None}]
    reasoning = estimate_tokens([{"content": response.thinking}])
    spoken = estimate_tokens([{"content": response.text, "tool_calls": response.calls}])
    usage = Usage(
        input_tokens=estimate_tokens([*head, *request.messages]),
        output_tokens=reasoning + spoken,
        reasoning_tokens=reasoning,
    )
    stop = stop or ("tool_calls" if response.calls else "end_turn")
    return response.model_copy(update={"usage": usage, "stop": stop})


async def deltas_of(parts: Iterable[Part], *, pause: float) -> AsyncIterator[Delta]:
    """Write `parts` word by word, with `pause` seconds after each word; a call is announced by its name."""
    for part in parts:
        for piece in [part.name] if isinstance(part, CallPart) else re.findall(r"\S+\s*|\s+", part.text):
            yield Delta(part.kind, piece)
            if pause:
                await asyncio.sleep(pause)


# ---- what the model looks at


@dataclass(frozen=True)
class Use:
    """A tool call that a plan needs; `aim` completes the sentence "I could not ..."."""

    tool: str
    aim: str
    args: Mapping[str, str]


_FAILURES: Mapping[ToolStatus, str] = {
    "error": "I could not {aim}: {line}",
    "denied": "I was not allowed to {aim}: {line}",
    "cancelled": "I was stopped before I could {aim}: {line}",
    "outcome_unknown": "I do not know whether I managed to {aim}: {line}",
}
_ABSENT = re.compile(r"not exist|no such|not found", re.IGNORECASE)
_CUT = re.compile(r"\[.*\b(?:cut|left out|truncated|omitted)\b", re.IGNORECASE)
_PART = re.compile(r"\blines? \d+(?:-\d+)? of (\d+)")


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
        return None if self.status == "ok" else _FAILURES[self.status].format(aim=self.use.aim, line=_ended(self.line))

    @property
    def lines(self) -> list[str]:
        """The lines of the content; a newline at its end opens no further one."""
        return self.content.removesuffix("\n").split("\n") if self.content else []

    @property
    def is_cut(self) -> bool:
        """The content is not the whole: its tool says so in the outcome, or marks the cut in brackets (CTX-14)."""
        return bool(_PART.search(self.line)) or any(map(_CUT.match, self.lines))

    @property
    def is_absent(self) -> bool:
        """There is no such file, as opposed to one that could not be read."""
        return self.status == "error" and bool(_ABSENT.search(self.line))


_CONTEXT_RULE = re.compile(r"^={80}$", re.MULTILINE)
"""Opens the context that a task is given below its description (TSK-3): facts to look up, no orders to follow."""

_SUMMARY_MARK = "[Conversation Summary]"
"""Opens the assistant message that stands for what was evicted (CTX-5)."""


class Scene:
    """The conversation as the model reads it: the newest request, what came before it, and this turn's results."""

    def __init__(self, request: ModelRequest) -> None:
        """Find the newest user message of `request`: the turn begins there, also where it was steered in."""
        messages = request.messages
        newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        self.offered = frozenset(tool.name for tool in request.head.tools)
        self.earlier = messages[: max(newest, 0)]
        self.turn = messages[newest + 1 :]
        self.asked, self.context = _parted(messages[newest].content if newest >= 0 else "")

    @property
    def results(self) -> list[tuple[CallPart, ModelMessage]]:
        """The calls of this turn that have a result, oldest first."""
        return list(_exchanges(self.turn))

    @property
    def files_read(self) -> list[tuple[str, Outcome]]:
        """The files whose content is in the conversation, newest last; the model's own memory is none of them."""
        read = [
            (str(call.args["path"]), _outcome(_reading(""), result))
            for call, result in _exchanges([*self.earlier, *self.turn])
            if call.name == "file_read" and isinstance(call.args, dict) and "path" in call.args
        ]
        return [(path, outcome) for path, outcome in read if not outcome.failure and path != MEMORY]

    @property
    def requests(self) -> list[str]:
        """What the user asked before, oldest first."""
        return [_parted(message.content)[0].strip() for message in self.earlier if message.role == "user"]

    @property
    def answers(self) -> list[str]:
        """What the model said before, oldest first."""
        return [message.content for message in self.earlier if message.role == "assistant" and message.content]

    def told_about(self, topic: str) -> str | None:
        """Quote the newest statement about `topic` of the first source that has one."""
        summaries = [text.removeprefix(_SUMMARY_MARK) for text in self.answers if text.startswith(_SUMMARY_MARK)]
        contexts = [_parted(message.content)[1] for message in self.earlier if message.role == "user"]
        sources = [
            ("You told me", [fact for text in [*self.requests, self.asked] for fact in _facts_about(topic, text)]),
            ("The context I was given says", _lines_about(topic, _sentences(*contexts, self.context))),
            ("The summary of our conversation says", _lines_about(topic, _sentences(*summaries))),
            *((f"{path} says", _lines_about(topic, outcome.lines)) for path, outcome in self.files_read[::-1]),
        ]
        return next((f"{source}: {_ended(_short(told[-1], 300))}" for source, told in sources if told), None)


def _parted(message: str) -> tuple[str, str]:
    request, *context = _CONTEXT_RULE.split(message, maxsplit=1)
    return request, "".join(context)


def _exchanges(messages: Iterable[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with the results that follow them; further on, a vendor's call id can mean another call."""
    calls: dict[str | None, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message


def _outcome(use: Use, result: ModelMessage) -> Outcome:
    line, _, content = result.content.partition("\n\n")
    return Outcome(use, _short(line, 300) or "it did not say what came of it", content, result.status or "ok")


_FILLER = re.compile(
    r"an?|about|and|are|at|did|do|for|i|in|is|it|me|my|of|on|our|said|say|tell|that|the|this|to|told|was|what|you|your"
)
"""Words that a topic and a statement about it need not share."""


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.casefold()) if not _FILLER.fullmatch(word)}


def _lines_about(topic: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that name everything in `topic` and say something about it; without a topic, all."""
    wanted = _words(topic)
    stripped = (line.strip(" \t\r-*>#") for line in lines)
    return [line for line in stripped if line and (not topic or (wanted and wanted < _words(line)))]


def _facts_about(topic: str, request: str) -> list[str]:
    """Return what `request` states about `topic`: in passing, and in what it wants remembered."""
    passing = [line for line in _lines_about(topic, _sentences(request)) if line[-1] != "?" and not wishes_in(line)]
    return [*passing, *_lines_about(topic, _noted(request))]


def _noted(request: str) -> list[str]:
    return [wish.fact for wish in wishes_in(request) if isinstance(wish, Remember)]


def _sentences(*texts: str) -> list[str]:
    return [sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+|\n", text)]


# ---- wishes and their plans

Plan = Generator[list[Use], list[Outcome], str]
"""Yields the uses it needs, is sent their outcomes in the same order, returns what to say."""


class Wish(ABC):
    """Something the user wants."""

    changes: ClassVar[bool] = False
    """It may change the world: it waits for what was asked before it, and what was asked after it waits for it."""

    @abstractmethod
    def plan(self, scene: Scene) -> Plan:
        """Begin the plan that fulfils the wish."""


@dataclass(frozen=True)
class LookUp(Wish):
    """One call, whose result is the answer."""

    use: Use

    def plan(self, scene: Scene) -> Plan:
        """Make the call and quote its result."""
        [outcome] = yield [self.use]
        return outcome.failure or _tell_result(outcome)


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
    """Questions about files; without `paths`, about the file that was read last."""

    paths: tuple[str, ...]
    questions: tuple[Callable[[str, Outcome], str], ...] = ()

    def plan(self, scene: Scene) -> Plan:
        """Read the files anew, all at once, and answer each question about each of them."""
        if self.paths:
            outcomes = yield [_reading(path) for path in self.paths]
            files = list(zip(self.paths, outcomes, strict=True))
        else:
            files = scene.files_read[-1:]
        told = [sentence for path, outcome in files for sentence in self._answers(path, outcome)]
        return "\n\n".join(told) or "I have read no file in this conversation yet that could answer this. Name one."

    def _answers(self, path: str, outcome: Outcome) -> list[str]:
        if outcome.failure:
            return [outcome.failure]
        return [tell(path, outcome) for tell in self.questions or (_tell_beginning,)]


@dataclass(frozen=True)
class Remember(Wish):
    """A fact to keep, also when the conversation can no longer be seen."""

    fact: str
    changes = True

    def plan(self, scene: Scene) -> Plan:
        """Add the fact to the memory file, unless it stands there already; what could not be read is not replaced."""
        line = f"- {self.fact}"
        [memory] = yield [_reading(MEMORY)]
        if memory.failure and not memory.is_absent:
            return f"{memory.failure} {_FORGETTING}"
        if memory.is_cut:
            return f"I was shown only a part of {MEMORY}, so I do not replace it. {_FORGETTING}"
        kept = [] if memory.failure else memory.lines
        if line not in kept:
            [written] = yield [_writing(MEMORY, "\n".join([*kept, line, ""]))]
            if written.failure:
                return f"{written.failure} {_FORGETTING}"
        return f"I will remember: {_ended(self.fact)} It is noted in {MEMORY}."


_FORGETTING = "I know it only as long as I can see this conversation."


@dataclass(frozen=True)
class Recall(Wish):
    """A question about what was said before; without `topic`, about everything that was to be remembered."""

    topic: str = ""

    def plan(self, scene: Scene) -> Plan:
        """Answer from the conversation, and from the memory file only if that holds nothing."""
        told = scene.told_about(self.topic) if self.topic else _tell_noted(scene)
        if told:
            return told
        [memory] = yield [_reading(MEMORY)]
        found = [] if memory.failure else _lines_about(self.topic, memory.lines)
        if found:
            return f"{MEMORY} says:\n\n{_quoted(found, most=LISTED_LINES)}"
        about = f"about “{_short(self.topic, 80)}”" if self.topic else "that I was to remember"
        if memory.failure and not memory.is_absent:
            return f"I find nothing {about} in this conversation. {memory.failure}"
        return f"I find nothing {about}, neither in this conversation nor in {_shown_of(MEMORY, memory)}."


def _reading(path: str) -> Use:
    return Use("file_read", f"read {path}", {"path": path})


def _writing(path: str, content: str) -> Use:
    return Use("file_write", f"write {path}", {"path": path, "content": content})


class _Results:
    """The results of this turn. Each serves one use, so that a file that is read again is read as it is then."""

    def __init__(self, scene: Scene) -> None:
        self._offered = scene.offered
        self._left = scene.results

    def take(self, use: Use) -> Outcome | None:
        """Return the outcome of `use`; None where the call is still to be made."""
        if use.tool not in self._offered:
            return Outcome(use, f"the tool {use.tool} is not available here", status="error")
        for index, (call, result) in enumerate(self._left):
            if call.name == use.tool and call.args == use.args:
                del self._left[index]
                return _outcome(use, result)
        return None


def _play(wishes: Iterable[Wish], scene: Scene) -> tuple[list[str], list[Use]]:
    """Replay all plans: return what the finished ones say, and the uses that come next."""
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
            outcomes = [results.take(use) for use in uses]
            missing = [use for use, outcome in zip(uses, outcomes, strict=True) if outcome is None]
            if missing:
                return [], missing
            uses = plan.send([outcome for outcome in outcomes if outcome is not None])
    except StopIteration as end:
        return [end.value], []


# ---- what is said


def _tell_beginning(path: str, outcome: Outcome) -> str:
    lines = outcome.lines
    if not lines:
        return f"{path} is empty."
    opening = f"{path} says" if len(lines) <= SHOWN_LINES else f"{_tell_line_count(path, outcome)} It begins"
    return f"{opening}:\n\n{_quoted(lines[:SHOWN_LINES], most=SHOWN_LINES)}"


def _tell_heading(path: str, outcome: Outcome) -> str:
    is_code = False
    for line in outcome.lines:
        if line.startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code and re.match(r"#{1,6}\s", line) and line.strip("# \t\r"):
            heading = _short(line.strip("# \t\r"), 200)
            return f"The first heading of {path} is “{heading}”."
    return f"I see no Markdown heading in {_shown_of(path, outcome)}."


def _tell_line_count(path: str, outcome: Outcome) -> str:
    part = _PART.search(outcome.line)
    if outcome.is_cut and not part:
        return f"I was shown only a part of {path}, so I cannot count its lines."
    count = int(part[1]) if part else len(outcome.lines)
    return f"{path} has {count} line{'' if count == 1 else 's'}."


def _tell_first_line(path: str, outcome: Outcome) -> str:
    first = _quoted(outcome.lines[:1], most=1)
    return f"The first line of {path} is:\n\n{first}" if first else f"{path} is empty."


def _tell_last_line(path: str, outcome: Outcome) -> str:
    if outcome.is_cut:
        return f"I was shown only a part of {path}, so I cannot tell its last line."
    written = [line for line in outcome.lines if line.strip()]
    return f"The last line of {path} is:\n\n{_quoted(written[-1:], most=1)}" if written else f"{path} is empty."


def _shown_of(path: str, outcome: Outcome) -> str:
    return f"the part I was shown of {path}" if outcome.is_cut else path


def _tell_result(outcome: Outcome) -> str:
    return f"{_ended(outcome.line)}\n\n{_quoted(outcome.lines, most=LISTED_LINES)}".strip()


def _tell_noted(scene: Scene) -> str | None:
    facts = [fact for request in scene.requests for fact in _noted(request)]
    return f"You told me to remember:\n\n{_quoted(facts, most=LISTED_LINES)}" if facts else None


def _tell_first_request(scene: Scene) -> str:
    if not scene.requests:
        return "This is the first thing you asked that I can see."
    return f"The first thing you asked that I can see was: “{_short(scene.requests[0], 200)}”."


def _tell_last_request(scene: Scene) -> str:
    if not scene.requests:
        return "I see nothing that you asked before this."
    return f"Before this you asked: “{_short(scene.requests[-1], 200)}”."


def _tell_last_answer(scene: Scene) -> str:
    if not scene.answers:
        return "I see nothing that I said before this."
    return f"The last thing I said was:\n\n{_quoted(scene.answers[-1].splitlines(), most=SHOWN_LINES)}"


def _tell_last_read(scene: Scene) -> str:
    if not scene.files_read:
        return "I see no file that I read in this conversation."
    path, outcome = scene.files_read[-1]
    return f"The last file I read was {path}. {_tell_beginning(path, outcome)}"


def _tell_too_long(scene: Scene) -> str:
    return f"Your request has {len(scene.asked):,} characters; offline I understand up to {MOST_CHARS:,}."


_ABILITIES = (
    ("file_read", "read files: “read README.md and tell me its first heading”"),
    ("file_list", "list them: “list files in docs”"),
    ("file_search", "search them: “search for TODO”"),
    ("file_write", "write them: “write hello to notes.txt”"),
    ("file_write", "remember: “remember that the code is 4711”"),
    ("now", "tell the time: “what time is it”"),
    ("run_task", "delegate: “delegate counting the files”"),
)


def _tell_abilities(scene: Scene) -> str:
    asked = f"You wrote: “{_short(scene.asked, 80)}”. That I do not understand. " if scene.asked.strip() else ""
    who = "I am the offline model, a program with no language model behind it. I can"
    offered = [f"- {ability}" for tool, ability in _ABILITIES if tool in scene.offered]
    looking_back = "- answer about this conversation: “what did I ask first?”, “what do you remember?”"
    return "\n".join([f"{asked}{who}", "", *offered, looking_back])


def _closing_thought(scene: Scene, *, understood: bool) -> str:
    if not understood:
        return "I recognise nothing in this that I could do offline. I say so, and what I can do instead."
    if not scene.results:
        return "There is no call left to make for this. I answer from what I can see."
    return "The tools have answered. I say what their results show, and nothing beyond them."


def _quoted(lines: Sequence[str], *, most: int) -> str:
    more = [f"… and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"> {line.rstrip()[:300]}" for line in [*lines[:most], *more])


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


# ---- what is understood

_QUOTED = r"""(?:"[^"]+"|“[^”]+”|`[^`]+`|(?<!\w)'[^'\n]+'(?!\w))"""
_FOLDER = r"(?:[\w./~-]*[\w/]|\.{1,2}(?!\w))"
_PATH = (
    r"""(?:"[^"\n]*[./][^"\n]*"|`[^`\n]+`|(?<![\w./~-])(?!(?:e\.g|i\.e)\b)"""
    r"(?:[\w.~-]*/[\w./~-]*\w|[\w.~-]*\.[a-z]\w{0,9}|readme|license|changelog|makefile|dockerfile)\b)"
)
_WITHIN = r"(?:(?![.!?](?:\s|\Z))[^\n])"
"""A character that does not end its sentence."""
_ON = _WITHIN + "{0,300}?"
"""On within the sentence, as little as possible; bounded, or a long text would take too long to read."""
_IS = r"(?:['\u2019]?s| is| are| was| were)"
_DID_I = r"what (?:did|have) i"
_DO_YOU = r"what (?:do|can|did|have) you (?:still |just |last )?"

_QUESTIONS: tuple[tuple[str, Callable[[str, Outcome], str]], ...] = (
    (r"\b(?:heading|headline|title)\b", _tell_heading),
    (r"\bhow many lines|number of lines|line count|count (?:the |its |all )?lines", _tell_line_count),
    (r"\bfirst line", _tell_first_line),
    (r"\blast line", _tell_last_line),
    (r"\bsummar(?:y|i[sz]e)\b", _tell_beginning),
)
_QUESTION = "|".join(pattern for pattern, _ in _QUESTIONS)

Build = Callable[[re.Match[str], str], Wish]
"""Makes a wish of a phrase's match and of what follows it, up to the next phrase."""


def _phrase(pattern: str, build: Build) -> tuple[re.Pattern[str], Build]:
    # A blank is any blank space, taken whole: what could be shared out in many ways would be tried in all of them.
    return re.compile(pattern.replace(" ", r"\s++"), re.IGNORECASE), build


def _wish_for_the_time(match: re.Match[str], rest: str) -> LookUp:
    return LookUp(Use("now", "tell the time", {}))


def _wish_to_read(match: re.Match[str], rest: str) -> Read:
    clause = match[0] + rest
    paths = dict.fromkeys(_unquoted(path) for path in re.findall(_PATH, clause, re.IGNORECASE))
    return Read(tuple(paths), tuple(tell for pattern, tell in _QUESTIONS if re.search(pattern, clause, re.IGNORECASE)))


def _wish_to_list(match: re.Match[str], rest: str) -> LookUp:
    place = _place(match.groupdict().get("place") or _split_place(f" {rest}")[1])
    where = "" if place == "." else f" in {place}"
    return LookUp(Use("file_list", f"list the files{where}", {"path": place}))


def _wish_to_search(match: re.Match[str], rest: str) -> LookUp:
    query, place = _split_place(match["first"] + rest)
    query, place = _unquoted(query), _place(match.groupdict().get("place") or place)
    return LookUp(Use("file_search", f"search for {_short(query, 80)}", {"query": query, "path": place}))


def _wish_to_write(match: re.Match[str], rest: str) -> Change:
    return Change(_writing(_unquoted(match["path"]), _unquoted(match["content"])))


def _wish_to_delegate(match: re.Match[str], rest: str) -> Change:
    task = _unquoted(match["task"])
    return Change(Use("run_task", f"delegate “{_short(task, 80)}”", {"description": task}))


def _wish_to_remember(match: re.Match[str], rest: str) -> Remember:
    return Remember(" ".join(_unquoted(match["first"] + rest).split()))


def _wish_to_recall(match: re.Match[str], rest: str) -> Recall:
    return Recall(_unquoted(rest))


def _wish_to_recall_all(match: re.Match[str], rest: str) -> Recall:
    return Recall()


def _answered_by(tell: Callable[[Scene], str]) -> Build:
    return lambda match, rest: LookBack(tell)


_ANYWHERE = frozenset(("here", "it", "all", "files", "folder", "directory", "workspace", "everything"))


def _split_place(text: str) -> tuple[str, str | None]:
    """Split off the folder that a text ends with, such as `in docs` or `in the folder docs`."""
    named = rf"(?:\s++(?:all|the|my|this|these|folder|directory)\b)*\s++({_QUOTED}|{_FOLDER})"
    match = re.fullmatch(rf"(.*?)\s++(?:in|of|under|inside|within)\b{named}", text, re.IGNORECASE | re.DOTALL)
    return (match[1], match[2]) if match else (text, None)


def _place(named: str | None) -> str:
    place = _unquoted(named or "")
    return "." if not place or place.casefold() in _ANYWHERE else place


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text


_PHRASES = (
    # what time it is
    _phrase(
        rf"(?:what{_IS}?|which|(?:tell me|give me|show me|do you know|find out)(?: what)?)(?: the| today['\u2019]?s)?"
        r"(?: current)? (?:time|date|day)"
        r"(?: is it\b| it is\b|(?=\s*(?:(?:now|today|right|please|and|then)\b|[.,;!?]|\Z)))",
        _wish_for_the_time,
    ),
    # what was said and done
    _phrase(r"(?:what|which)(?: files?)? (?:did|have) you (?:just |last )?read\b", _answered_by(_tell_last_read)),
    _phrase(rf"{_DO_YOU}(?:say|said|answer|answered)\b", _answered_by(_tell_last_answer)),
    _phrase(rf"{_DID_I} (?:\w+ ){{1,5}}about |{_DO_YOU}(?:remember|recall|know) (?:about|of) ", _wish_to_recall),
    _phrase(
        rf"{_DO_YOU}(?:remember|recall|know)\b|{_DID_I} (?:tell|told|ask|asked) you to remember", _wish_to_recall_all
    ),
    _phrase(rf"{_DID_I} (?:tell|told) you", _wish_to_recall_all),
    _phrase(
        rf"(?={_ON}\bfirst\b)(?:{_DID_I}(?: first)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:very )?first"
        r" (?:question|message|request|prompt|thing i))",
        _answered_by(_tell_first_request),
    ),
    _phrase(
        rf"{_DID_I}(?: just| last)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:last|previous)"
        r" (?:question|message|request|prompt|thing i)",
        _answered_by(_tell_last_request),
    ),
    # what changes something
    _phrase(rf"delegate(?: this)?:? (?P<task>{_QUOTED}|{_WITHIN}+)", _wish_to_delegate),
    _phrase(r"(?:do you )?(?:still )?(?:remember|recall) (?!that\b|this\b|to\b)(?=[^.!?\n]+\?)", _wish_to_recall),
    _phrase(
        r"(?:remember|memori[sz]e|keep in mind)(?: that| this)?:? (?!what\b|when\b|who\b|how\b|where\b)(?P<first>\S+)",
        _wish_to_remember,
    ),
    _phrase(rf"(?:write|save) (?:in)?to (?:the )?(?:file )?(?P<path>{_PATH})\s*:(?P<content>[\s\S]+)", _wish_to_write),
    _phrase(
        rf"(?:write|save|put|store) (?P<content>{_QUOTED}|\S[\s\S]*?) (?:in|into|to|as) (?:a |the |my )?(?:new )?"
        rf"(?:file )?(?:called |named )?(?P<path>{_PATH})",
        _wish_to_write,
    ),
    # what looks something up
    _phrase(
        r"(?:list|show|what|which)(?: me)?(?: all| the| my)* (?:files|folders?|directory|directories)\b", _wish_to_list
    ),
    _phrase(rf"(?:list|ls) (?P<place>{_FOLDER})(?=[\s.!?]*\Z)|ls\b", _wish_to_list),
    _phrase(rf"search (?!for\b)(?:in )?(?:the )?(?P<place>{_FOLDER}) for (?P<first>{_QUOTED}|\S)", _wish_to_search),
    _phrase(rf"(?:search|grep|look for|find)(?: for)? (?!out\b)(?P<first>{_QUOTED}|\S)", _wish_to_search),
    _phrase(
        rf"(?:read|open|show|cat|display|print|check|look (?:at|into)|what|who|where|when|does|how)\b(?={_ON}{_PATH})",
        _wish_to_read,
    ),
    _phrase(rf"(?={_ON}(?:{_QUESTION}))(?:what|which|how|its|the|tell|give|show|count|summar\w+)\b", _wish_to_read),
    _phrase(rf"(?:what|who|where|when|which){_IS} (?=\w)|tell me (?=about\b|the\b|my\b|what\b)", _wish_to_recall),
)
"""What a request can hold, and the wish it is; of two phrases that begin at the same word the upper one counts."""

_OPENING = re.compile(
    rf"(?P<quoted>{_QUOTED})|\A\s*|[.,;:!?)]\s+|\n\s*"
    r"|\b(?:(?:can|could|would|will)\s+you|(?:want|like|need)\s+you\s+to)\b\s*"
    r"|\b(?:and|then|but|so|also|please|just|now|kindly|hey|hi|hello|ok|okay)\b[\s,]*",
    re.IGNORECASE,
)
"""Where a phrase may begin: not after "don't" or "how to", and not inside a quotation."""

_STOP = r"(?:[,;:!?\n]|(?<![\s.])\.)"
"""What ends a sentence or a part of it; not the dots of `in ..`."""
_JOINT = re.compile(
    rf"\s*(?:{_STOP}|\b(?:and|then|but|so|also|please)\b)"
    r"(?:[\s.,;:!?]|\b(?:and|then|also|please|just|now|can|could|would|will|you|kindly)\b)*\Z",
    re.IGNORECASE,
)
_END = re.compile(rf"(?:\s|{_STOP}|\bplease\b)+\Z", re.IGNORECASE)


def wishes_in(text: str) -> list[Wish]:
    """Return the wishes that `text` holds, in its order; none where no phrase is recognised.

    >>> wishes_in("Please read a.txt and b.txt, then remember that tea is ready.")
    [Read(paths=('a.txt', 'b.txt'), questions=()), Remember(fact='tea is ready')]
    """
    if len(text) > MOST_CHARS:
        return [LookBack(_tell_too_long)]
    found = list(_recognised(text))
    wishes: list[Wish] = []
    for number, (match, build) in enumerate(found):
        is_last = number + 1 == len(found)
        rest = text[match.end() :] if is_last else text[match.end() : found[number + 1][0].start()]
        _append(wishes, build(match, (_END if is_last else _JOINT).sub("", rest)))
    return wishes


def _recognised(text: str) -> Iterator[tuple[re.Match[str], Build]]:
    """Yield the phrases in `text` with their matches, which do not overlap."""
    end = 0
    for opening in _OPENING.finditer(text):
        if opening["quoted"] or opening.end() < end:
            continue
        matches = ((pattern.match(text, opening.end()), build) for pattern, build in _PHRASES)
        match, build = next(((match, build) for match, build in matches if match), (None, None))
        if match and build:
            yield match, build
            end = match.end()


def _append(wishes: list[Wish], wish: Wish) -> None:
    """Add a wish; a question that names no file is about the files of the wish before it."""
    before = wishes[-1] if wishes else None
    if isinstance(wish, Read) and not wish.paths and isinstance(before, Read):
        wishes[-1] = replace(before, questions=before.questions + wish.questions)
    else:
        wishes.append(wish)
