"""What a user can ask of the offline model, and the patterns that recognise it.

Theory of operation. A text is searched from left to right for openings: places where a request may begin, such as the
start of a sentence or what follows "and" or "please". At an opening the patterns are tried from the top of the table;
the first that matches makes an intent of its match and of the text up to the next match. Text that no pattern matches
is ignored. No text takes long: the patterns are bounded, and so is the text (`MAX_CHARS`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from turnkeeper.activities.providers.offline.text import shorten

MAX_CHARS = 4_000
"""Longest request that is searched for intents: the search costs more than in proportion to the text."""

FileQuestion = Literal["beginning", "first heading", "line count", "first line", "last line"]
ConversationQuestion = Literal["first request", "previous request", "previous answer", "newest file", "request length"]


@dataclass(frozen=True)
class ToolUse:
    """Make one call; its result is the answer. `purpose` completes the sentence "I could not ..."."""

    tool: str
    purpose: str
    args: Mapping[str, str]

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a file."""
        return cls("file_read", f"read {path}", {"path": path})

    @classmethod
    def write(cls, path: str, content: str) -> Self:
        """Replace a file."""
        return cls("file_write", f"write {path}", {"path": path, "content": content})


@dataclass(frozen=True)
class LookBack:
    """Answer from the conversation."""

    question: ConversationQuestion


@dataclass(frozen=True)
class Read:
    """Answer questions about files; without `paths`, about the file that was read last."""

    paths: tuple[str, ...]
    questions: tuple[FileQuestion, ...] = ()


@dataclass(frozen=True)
class Remember:
    """Keep a fact, also when the conversation can no longer be seen."""

    fact: str


@dataclass(frozen=True)
class Recall:
    """Find what was said about a topic; without `topic`, everything that was to be remembered."""

    topic: str = ""


Intent = ToolUse | LookBack | Read | Remember | Recall

Build = Callable[[re.Match[str], str], Intent]
"""Makes an intent of a pattern's match and of the text between it and the next match."""


def find_intents(text: str) -> list[Intent]:
    """Return the intents in `text`, in its order; none where no pattern matches.

    >>> find_intents("Please read a.txt and b.txt, then remember that tea is ready.")
    [Read(paths=('a.txt', 'b.txt'), questions=()), Remember(fact='tea is ready')]
    """
    if len(text) > MAX_CHARS:
        return [LookBack("request length")]
    matches = list(_matches(text))
    intents: list[Intent] = []
    for index, (match, build) in enumerate(matches, start=1):
        is_last = index == len(matches)
        rest = text[match.end() :] if is_last else text[match.end() : matches[index][0].start()]
        intent = build(match, (_END if is_last else _JOINT).sub("", rest))
        previous = intents[-1] if intents else None
        if isinstance(intent, Read) and not intent.paths and isinstance(previous, Read):
            # A question that names no file is about the files named before it.
            intents[-1] = replace(previous, questions=previous.questions + intent.questions)
        else:
            intents.append(intent)
    return intents


def _matches(text: str) -> Iterator[tuple[re.Match[str], Build]]:
    end = 0
    for opening in _OPENING.finditer(text):
        if opening["quotation"] or opening.end() < end:
            continue
        for pattern, build in _PATTERNS:
            match = pattern.match(text, opening.end())
            if match:
                yield match, build
                end = match.end()
                break


# ---- the parts of patterns

_QUOTATION = r"""(?:"[^"]+"|“[^”]+”|`[^`]+`|(?<!\w)'[^'\n]+'(?!\w))"""
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

_QUESTIONS: Mapping[FileQuestion, str] = {
    "first heading": r"\b(?:heading|headline|title)\b",
    "line count": r"\bhow many lines|number of lines|line count|count (?:the |its |all )?lines",
    "first line": r"\bfirst line",
    "last line": r"\blast line",
    "beginning": r"\bsummar(?:y|i[sz]e)\b",
}
_QUESTION = "|".join(_QUESTIONS.values())

_HERE = frozenset(("here", "it", "all", "files", "folder", "directory", "workspace", "everything"))
"""Words for the whole workspace where a folder's name may stand."""


# ---- from a match to its intent


def _read(match: re.Match[str], rest: str) -> Intent:
    clause = match[0] + rest
    paths = dict.fromkeys(_unquote(path) for path in re.findall(_PATH, clause, re.IGNORECASE))
    questions = (name for name, pattern in _QUESTIONS.items() if re.search(pattern, clause, re.IGNORECASE))
    return Read(tuple(paths), tuple(questions))


def _list(match: re.Match[str], rest: str) -> Intent:
    folder = _folder(match["folder"] or _split_folder(f" {rest}")[1])
    where = "" if folder == "." else f" in {folder}"
    return ToolUse("file_list", f"list the files{where}", {"path": folder})


def _search(match: re.Match[str], rest: str) -> Intent:
    query, folder = _split_folder(match["query"] + rest)
    query, folder = _unquote(query), _folder(match["folder"] or folder)
    return ToolUse("file_search", f"search for {shorten(query, 80)}", {"query": query, "path": folder})


def _write(match: re.Match[str], rest: str) -> Intent:
    return ToolUse.write(_unquote(match["path"]), _unquote(match["content"]))


def _delegate(match: re.Match[str], rest: str) -> Intent:
    task = _unquote(match["task"])
    return ToolUse("run_task", f"delegate “{shorten(task, 80)}”", {"description": task})


def _recall(match: re.Match[str], rest: str) -> Intent:
    return Recall(_unquote(rest))


def _split_folder(text: str) -> tuple[str, str | None]:
    """Split off the folder that a text ends with, such as `in docs` or `in the folder docs`."""
    folder = rf"(?:\s++(?:all|the|my|this|these|folder|directory)\b)*\s++({_QUOTATION}|{_FOLDER})"
    match = re.fullmatch(rf"(.*?)\s++(?:in|of|under|inside|within)\b{folder}", text, re.IGNORECASE | re.DOTALL)
    return (match[1], match[2]) if match else (text, None)


def _folder(text: str | None) -> str:
    folder = _unquote(text or "")
    return "." if not folder or folder.casefold() in _HERE else folder


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if re.fullmatch(_QUOTATION, text) else text


# ---- the table


def _pattern(pattern: str, build: Build) -> tuple[re.Pattern[str], Build]:
    # A blank is any blank space, taken whole: what could be shared out in many ways would be tried in all of them.
    return re.compile(pattern.replace(" ", r"\s++"), re.IGNORECASE), build


_PATTERNS = (
    # what time it is
    _pattern(
        rf"(?:what{_IS}?|which|(?:tell me|give me|show me|do you know|find out)(?: what)?)(?: the| today['\u2019]?s)?"
        r"(?: current)? (?:time|date|day)"
        r"(?: is it\b| it is\b|(?=\s*(?:(?:now|today|right|please|and|then)\b|[.,;!?]|\Z)))",
        lambda match, rest: ToolUse("now", "tell the time", {}),
    ),
    # what was said and done
    _pattern(
        r"(?:what|which)(?: files?)? (?:did|have) you (?:just |last )?read\b",
        lambda match, rest: LookBack("newest file"),
    ),
    _pattern(rf"{_DO_YOU}(?:say|said|answer|answered)\b", lambda match, rest: LookBack("previous answer")),
    _pattern(rf"{_DID_I} (?:\w+ ){{1,5}}about |{_DO_YOU}(?:remember|recall|know) (?:about|of) ", _recall),
    _pattern(
        rf"{_DO_YOU}(?:remember|recall|know)\b|{_DID_I} (?:tell|told|ask|asked) you to remember"
        rf"|{_DID_I} (?:tell|told) you",
        lambda match, rest: Recall(),
    ),
    _pattern(
        rf"(?={_ON}\bfirst\b)(?:{_DID_I}(?: first)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:very )?first"
        r" (?:question|message|request|prompt|thing i))",
        lambda match, rest: LookBack("first request"),
    ),
    _pattern(
        rf"{_DID_I}(?: just| last)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:last|previous)"
        r" (?:question|message|request|prompt|thing i)",
        lambda match, rest: LookBack("previous request"),
    ),
    # what changes something
    _pattern(rf"delegate(?: this)?:? (?P<task>{_QUOTATION}|{_WITHIN}+)", _delegate),
    _pattern(r"(?:do you )?(?:still )?(?:remember|recall) (?!that\b|this\b|to\b)(?=[^.!?\n]+\?)", _recall),
    _pattern(
        r"(?:remember|memori[sz]e|keep in mind)(?: that| this)?:? (?!what\b|when\b|who\b|how\b|where\b)(?P<fact>\S+)",
        lambda match, rest: Remember(" ".join(_unquote(match["fact"] + rest).split())),
    ),
    _pattern(rf"(?:write|save) (?:in)?to (?:the )?(?:file )?(?P<path>{_PATH})\s*:(?P<content>[\s\S]+)", _write),
    _pattern(
        rf"(?:write|save|put|store) (?P<content>{_QUOTATION}|\S[\s\S]*?) (?:in|into|to|as) (?:a |the |my )?(?:new )?"
        rf"(?:file )?(?:called |named )?(?P<path>{_PATH})",
        _write,
    ),
    # what looks something up
    _pattern(
        r"(?:list|show|what|which)(?: me)?(?: all| the| my)* (?:files|folders?|directory|directories)\b"
        rf"|(?:list|ls) (?P<folder>{_FOLDER})(?=[\s.!?]*\Z)|ls\b",
        _list,
    ),
    _pattern(
        rf"(?:search (?!for\b)(?:in )?(?:the )?(?P<folder>{_FOLDER}) for "
        rf"|(?:search|grep|look for|find)(?: for)? (?!out\b))(?P<query>{_QUOTATION}|\S)",
        _search,
    ),
    _pattern(
        rf"(?:read|open|show|cat|display|print|check|look (?:at|into)|what|who|where|when|does|how)\b(?={_ON}{_PATH})"
        rf"|(?={_ON}(?:{_QUESTION}))(?:what|which|how|its|the|tell|give|show|count|summar\w+)\b",
        _read,
    ),
    _pattern(rf"(?:what|who|where|when|which){_IS} (?=\w)|tell me (?=about\b|the\b|my\b|what\b)", _recall),
)
"""Every request that is understood; of two patterns that match at the same place the upper one counts."""

# ---- where requests begin and end

_OPENING = re.compile(
    rf"(?P<quotation>{_QUOTATION})|\A\s*|[.,;:!?)]\s+|\n\s*"
    r"|\b(?:(?:can|could|would|will)\s+you|(?:want|like|need)\s+you\s+to)\b\s*"
    r"|\b(?:and|then|but|so|also|please|just|now|kindly|hey|hi|hello|ok|okay)\b[\s,]*",
    re.IGNORECASE,
)
"""Where a request may begin: not after "don't" or "how to", and not inside a quotation."""

_STOP = r"(?:[,;:!?\n]|(?<![\s.])\.)"
"""What ends a sentence or a part of it; not the dots of `in ..`."""
_JOINT = re.compile(
    rf"\s*(?:{_STOP}|\b(?:and|then|but|so|also|please)\b)"
    r"(?:[\s.,;:!?]|\b(?:and|then|also|please|just|now|can|could|would|will|you|kindly)\b)*\Z",
    re.IGNORECASE,
)
_END = re.compile(rf"(?:\s|{_STOP}|\bplease\b)+\Z", re.IGNORECASE)
