"""Learning which parameters a model rejects, and which fields it requires (AGT-4).

Models differ in the optional parameters that they accept, and endpoints with the same API differ even more. No list of
models stays correct, and no table has names that nobody has seen. So requests contain everything that is useful, and
the endpoint decides: what it rejects by name is omitted, and the changed request is sent at once. That is not a retry,
since a rejected request was not processed, and the same one is never sent twice. A worker remembers it for
`MEMORY_SECONDS` and then tries the parameter again: behind a router are many servers, and one odd one is no reason to
miss usage forever. That costs one rejected request per parameter and model each time. Every endpoint has a memory of
its own.

Only wordings of a rejection count. "Missing `reasoning_content`" means the opposite, with the same name: a required
field is added from then on, with a placeholder where an answer has none. Parameters are the same in all requests, so
they are remembered per model; fields of messages depend on the session's past, so they are remembered per session.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.stores.bounded_dict import BoundedDict

MAX_REMEMBERED = 10_000
"""Models or sessions that are remembered; beyond that, the least recently used is forgotten."""

MEMORY_SECONDS = 600.0
"""How long a rejection or a requirement is remembered."""

_log = logging.getLogger(__name__)


@dataclass
class _Memory:
    """Until when each name counts as unsupported, or as required."""

    unsupported: dict[str, float] = field(default_factory=dict)
    required: dict[str, float] = field(default_factory=dict)

    def forget(self, now: float) -> None:
        self.unsupported = {name: until for name, until in self.unsupported.items() if until > now}
        self.required = {name: until for name, until in self.required.items() if until > now}


class UnsupportedParameters:
    """What each model, or each session, rejects and requires. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._memories = BoundedDict[Hashable, _Memory](max_entries=MAX_REMEMBERED)

    def of(self, key: Hashable) -> frozenset[str]:
        """Return the names to omit from requests of a model or session, identified by `key`."""
        memory = self._memory_of(key)
        return frozenset(memory.unsupported.keys() - memory.required.keys())

    def required_of(self, key: Hashable) -> frozenset[str]:
        """Return the names of fields to add even if there is no value."""
        return frozenset(self._memory_of(key).required)

    def learn(
        self, key: Hashable, error: ModelError, *, optional: Collection[str], requirable: Collection[str] = ()
    ) -> bool:
        """Remember what `error` blames if it can be changed; return whether to send a changed request.

        `optional`: names in the rejected request that can be omitted. `requirable`: names that it lacks.

        >>> unsupported = UnsupportedParameters()
        >>> error = ModelError("bad_request", "Unsupported parameter: 'stream_options'")
        >>> [unsupported.learn("m", error, optional=["stream_options"]) for _ in range(2)], unsupported.of("m")
        ([True, True], frozenset({'stream_options'}))
        >>> unsupported.learn("m", ModelError("bad_request", "Missing 'stream_options'"), optional=["stream_options"])
        False
        """
        if error.error_type != "bad_request":
            return False
        memory = self._memory_of(key)
        # The longest first: a model may accept `reasoning`, but not `reasoning.summary`.
        until = self._clock() + MEMORY_SECONDS
        for name in sorted({*optional, *requirable} - memory.required.keys(), key=lambda name: (-len(name), name)):
            verdict = _verdict(error, name)
            if verdict == "unsupported" and name in optional:
                # Also if another request has learned it meanwhile: this one was sent with it, the next one is not.
                if name not in memory.unsupported:
                    _log.warning("%s rejects %r: omitted for %g s", _label(key), name, MEMORY_SECONDS)
                memory.unsupported[name] = until
                return True
            if verdict == "required" and name in requirable:
                _log.warning("%s requires %r: added for %g s", _label(key), name, MEMORY_SECONDS)
                memory.required[name] = until
                return True
        return False

    def _memory_of(self, key: Hashable) -> _Memory:
        memory = self._memories[key] = self._memories.get(key) or _Memory()
        memory.forget(self._clock())
        return memory


def _label(key: Hashable) -> str:
    """Return a model, or a model and a session, for the log."""
    return " in session ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def present_in(body: Mapping[str, object], names: Iterable[str]) -> frozenset[str]:
    """Return those of the `names` that are in a request's body.

    >>> sorted(present_in({"reasoning": {"summary": "auto"}}, ["reasoning.summary", "reasoning.effort", "reasoning"]))
    ['reasoning', 'reasoning.summary']
    """
    return frozenset(name for name in names if _is_present(body, name))


def _is_present(body: object, name: str) -> bool:
    first, _, rest = name.partition(".")
    return isinstance(body, Mapping) and first in body and (not rest or _is_present(body[first], rest))


_DEMAND = re.compile(
    r"\bmissing\b|\brequire[sd]?\b|\bpassed back\b|\bneeds? to be\b"
    r"|\bmust (?!not\b)(?:\w+ )?(?:be (?:passed|sent|set|given|provided|included|present|returned)|have|contain)\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\bun(?:supported|known|recogni[sz]ed|expected)|\bextra|forbidden|\bdeprecated|\bincompatible|\bmust be verified"
    r"|\b(?:not|no longer) (?:\w+ )?(?:supported|permitted|allowed|accepted|available|recogni[sz]ed|implemented)"
    r"|(?:\bnot|n't) (?:support|accept|allow|recogni[sz]e)|\b(?:must|should) not\b|\bcan(?:not|'t) be\b|\bremove\b"
    r"|\b(?:invalid|not a valid) (?:value|parameter|argument|field|property)",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[;\n]|(?<=[.!?])\s|\},\s*\{")
"""Separators of complaints: in sentences, in lists, and in lists as Python prints them."""


def _verdict(error: ModelError, name: str) -> Literal["unsupported", "required"] | None:
    """Return what the message says about `name`: the clause with the name counts, or else the whole message."""
    if not _is_blamed(error, name):
        return None
    complaints = [clause for clause in _CLAUSE_END.split(error.message) if _names(clause, name)]
    for clause in (*complaints, error.message):
        if _DEMAND.search(clause):
            return "required"
        if _REFUSAL.search(clause):
            return "unsupported"
    return None


def _is_blamed(error: ModelError, name: str) -> bool:
    if error.parameter and _names(error.parameter, name):
        return True  # `reasoning.summary`, `include[0]`, `messages[2].reasoning_content`
    # Without a parameter the sentence counts, but only for names that are not English words.
    is_another = error.parameter and not error.parameter.startswith("messages")
    return not is_another and "_" in name and _names(error.message, name)


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
