"""What a user can ask of the offline model: a table of phrases.

A request is split into clauses: at the end of a sentence, and before a verb that follows "and" or "then". A clause is
an intent if a phrase matches all of it; others are ignored, so "don't write x to a.txt" writes nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_CHARS = 4_000
"""Longer texts are not parsed."""

Kind = Literal[
    "time",
    "list",
    "longest file",
    "search",
    "read",
    "write",
    "remember",
    "memory",
    "recall",
    "delegate",
    "last file",
    "first request",
]

_QUOTED = r"""(?:"[^"\n]+"|“[^”\n]+”)"""
_PATH = rf"(?:{_QUOTED}|(?=\S*[./])\S++)"
"""A path without quotes has a dot or a slash: "read on" reads nothing."""
_FOLDER = rf"(?P<folder>{_QUOTED}|\S++)"

_PHRASES: Mapping[Kind, str] = {
    "time": r"what time is it|(?:tell me|what is|what's) the (?:time|date)",
    "list": rf"list (?:the )?files(?: here| in {_FOLDER})?",
    "longest file": rf"(?:find|tell me|what is) the (?:longest|largest) file(?: in this workspace| in {_FOLDER})?",
    "search": rf"search for (?P<query>{_QUOTED}|.+?)(?: in {_FOLDER})?",
    "read": rf"read (?:the file )?(?P<path>{_PATH})(?P<heading> and tell me its first heading)?",
    "write": rf"write (?P<content>{_QUOTED}|.+?) to (?:the file )?(?P<path>{_PATH})",
    "remember": r"remember (?:that )?(?P<fact>.+)",
    "delegate": r"delegate:? (?P<task>.+)",
    "last file": r"what have you read|(?:what|which file) did you read",
    "first request": r"what did I ask first",
    "memory": r"what do you remember",
    "recall": r"what(?:'s| is| are) (?P<topic>.+)",
}
"""The first phrase that matches a clause counts."""

_VERB = r"(?:please )?(?:read|list|search|write|remember|delegate|find the|tell me the|what)\b"
_CLAUSE_END = rf"""(?<=[\w"”)])[.!?]+(?=\s|\Z)|\n|[,;]? (?:and then|and|then) (?={_VERB})"""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s++"), re.IGNORECASE)


_CLAUSE = _compile(rf"((?:{_QUOTED}|(?!{_CLAUSE_END})[\s\S])+)(?:{_CLAUSE_END})?")
_PATTERNS = {kind: _compile(rf"(?:and |then |please )*(?:{phrase})") for kind, phrase in _PHRASES.items()}


@dataclass(frozen=True)
class Intent:
    """Something that the user wants, with the `words` that specify it."""

    kind: Kind
    words: Mapping[str, str] = field(default_factory=dict)


def find_intents(text: str) -> list[Intent]:
    """Return the intents in `text`, in its order.

    >>> find_intents("Write hello to a.txt and list files. Sing!")
    [Intent(kind='write', words={'content': 'hello', 'path': 'a.txt'}), Intent(kind='list', words={})]
    """
    clauses = _CLAUSE.findall(text) if len(text) <= MAX_CHARS else []
    return [intent for clause in clauses if (intent := _intent_of(clause.strip()))]


def _intent_of(clause: str) -> Intent | None:
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(clause)
        if match:
            return Intent(kind, {name: _unquote(word) for name, word in match.groupdict().items() if word})
    return None


def _unquote(text: str) -> str:
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text
