"""What is typed while a tool call waits for a decision: an answer to the question, or something else.

An answer goes to the call that was shown when it was begun to be typed: a question that comes up in between is not
answered by what was meant for another.
"""

from dataclasses import dataclass

from turnkeeper.models.transcript.trajectory import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS

_YES = frozenset({"y", "yes"})
_ALWAYS = frozenset({"a", "always"})
_NO = frozenset({"n", "no"})

KEYS = ("[y]es once / [a]lways in this session / [n]o + reason", "[y]es [a]lways [n]o", "y/a/n")
"""What can be answered, in ever fewer words."""


@dataclass(frozen=True)
class Verdict:
    """An answer to a question. `reason` is told to the model."""

    decision: ApprovalDecision
    reason: str | None = None


def keys_within(columns: int) -> str:
    """Say what can be answered, in as many words as there is room for.

    >>> keys_within(80), keys_within(30)
    ('[y]es once / [a]lways in this session / [n]o + reason', '[y]es [a]lways [n]o')
    """
    return next((keys for keys in KEYS if len(keys) <= columns), KEYS[-1])


def read_verdict(line: str) -> Verdict | None:
    """Return what a line decides; `None` where it is no answer, but a prompt.

    >>> read_verdict("y"), read_verdict("Always").decision
    (Verdict(decision='approve', reason=None), 'allow_for_session')
    >>> read_verdict("no, use notes.txt"), read_verdict("n")
    (Verdict(decision='reject', reason='use notes.txt'), Verdict(decision='reject', reason=None))
    >>> read_verdict("a list of files, please"), read_verdict("notes?"), read_verdict("yes please do")
    (None, None, None)
    """
    words = line.strip()
    if words.casefold() in _YES:
        return Verdict("approve")
    if words.casefold() in _ALWAYS:
        return Verdict("allow_for_session")
    first = words.replace(",", " ").replace(":", " ").split(maxsplit=1)[:1]
    if first and first[0].casefold() in _NO:
        reason = words[len(first[0]) :].lstrip(" ,:")[:REASON_CHARS]
        return Verdict("reject", reason or None)
    return None
