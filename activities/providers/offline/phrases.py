"""What the offline model understands: the table of phrases, and how the wishes of a text are found with it.

Theory of operation. A text is searched from left to right for openings: places where a phrase may begin, such as the
start of a sentence or what follows "and" or "please". At an opening the phrases are tried from the top of the table;
the first that matches makes a wish of its match and of the text up to the next phrase. What no phrase matches is
passed over. No text may take long, whoever wrote it: patterns are bounded, and so is the text (`MOST_CHARS`).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from turnkeeper.activities.providers.offline.answers import (
    tell_beginning,
    tell_first_line,
    tell_first_request,
    tell_heading,
    tell_last_answer,
    tell_last_line,
    tell_last_read,
    tell_last_request,
    tell_line_count,
)
from turnkeeper.activities.providers.offline.scene import Outcome, Scene, Use, writing
from turnkeeper.activities.providers.offline.text import short
from turnkeeper.activities.providers.offline.wishes import Change, LookBack, LookUp, Read, Recall, Remember, Wish

MOST_CHARS = 4_000
"""Longest request that is searched for phrases: the search costs more than in proportion to the text."""

# ---- the parts of patterns

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
    (r"\b(?:heading|headline|title)\b", tell_heading),
    (r"\bhow many lines|number of lines|line count|count (?:the |its |all )?lines", tell_line_count),
    (r"\bfirst line", tell_first_line),
    (r"\blast line", tell_last_line),
    (r"\bsummar(?:y|i[sz]e)\b", tell_beginning),
)
_QUESTION = "|".join(pattern for pattern, _ in _QUESTIONS)

# ---- from a phrase to its wish

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
    return LookUp(Use("file_search", f"search for {short(query, 80)}", {"query": query, "path": place}))


def _wish_to_write(match: re.Match[str], rest: str) -> Change:
    return Change(writing(_unquoted(match["path"]), _unquoted(match["content"])))


def _wish_to_delegate(match: re.Match[str], rest: str) -> Change:
    task = _unquoted(match["task"])
    return Change(Use("run_task", f"delegate “{short(task, 80)}”", {"description": task}))


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


# ---- the table

_PHRASES = (
    # what time it is
    _phrase(
        rf"(?:what{_IS}?|which|(?:tell me|give me|show me|do you know|find out)(?: what)?)(?: the| today['\u2019]?s)?"
        r"(?: current)? (?:time|date|day)"
        r"(?: is it\b| it is\b|(?=\s*(?:(?:now|today|right|please|and|then)\b|[.,;!?]|\Z)))",
        _wish_for_the_time,
    ),
    # what was said and done
    _phrase(r"(?:what|which)(?: files?)? (?:did|have) you (?:just |last )?read\b", _answered_by(tell_last_read)),
    _phrase(rf"{_DO_YOU}(?:say|said|answer|answered)\b", _answered_by(tell_last_answer)),
    _phrase(rf"{_DID_I} (?:\w+ ){{1,5}}about |{_DO_YOU}(?:remember|recall|know) (?:about|of) ", _wish_to_recall),
    _phrase(
        rf"{_DO_YOU}(?:remember|recall|know)\b|{_DID_I} (?:tell|told|ask|asked) you to remember", _wish_to_recall_all
    ),
    _phrase(rf"{_DID_I} (?:tell|told) you", _wish_to_recall_all),
    _phrase(
        rf"(?={_ON}\bfirst\b)(?:{_DID_I}(?: first)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:very )?first"
        r" (?:question|message|request|prompt|thing i))",
        _answered_by(tell_first_request),
    ),
    _phrase(
        rf"{_DID_I}(?: just| last)? (?:ask|say|want|write)|what{_IS} (?:my|the) (?:last|previous)"
        r" (?:question|message|request|prompt|thing i)",
        _answered_by(tell_last_request),
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

# ---- how it is searched

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


def _tell_too_long(scene: Scene) -> str:
    return f"Your request has {len(scene.asked):,} characters; offline I understand up to {MOST_CHARS:,}."


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
