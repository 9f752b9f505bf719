"""What of a request a model turned out not to take, and is spared from then on (AGT-4).

Models differ in the optional parameters they take, and endpoints that speak the same API differ even more. No list of
models stays right, and no table knows a name it has not seen. So requests ask for everything that is good to have, and
the endpoint's own word decides: what it refuses by name is left out, and the changed request is sent at once. That is
no retry, since a refused request was not begun, and the same one is never sent twice. A worker remembers it for
`MEMORY_SECONDS`, and then tries the parameter again: behind a router stand many servers, and one odd one among them is
no reason to go without usage for ever. It costs one refused request for each parameter and model, that often. Every
endpoint has a memory of its own.

Only words of refusal count. "Missing `reasoning_content`" says the opposite, of the same name: what is demanded like
that is sent from then on, with something for an answer that has none of its own. Parameters are the same in all
requests, so that what is learned of one holds for a model; fields of messages depend on what a session has been
through, so that what is learned of those holds for the session.
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
"""Models, or sessions, that are remembered; beyond it, the one is forgotten that was not asked for the longest."""

MEMORY_SECONDS = 600.0
"""How long a refusal or a demand is remembered."""

_log = logging.getLogger(__name__)


@dataclass
class _Memory:
    """Until when each name counts as refused, or as demanded."""

    unsupported: dict[str, float] = field(default_factory=dict)
    required: dict[str, float] = field(default_factory=dict)

    def forget(self, now: float) -> None:
        self.unsupported = {name: until for name, until in self.unsupported.items() if until > now}
        self.required = {name: until for name, until in self.required.items() if until > now}


class UnsupportedParameters:
    """What each model, or each session, was found to refuse and to demand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin by supposing that everything is taken and nothing demanded. `clock` returns seconds."""
        self._clock = clock
        self._memories = BoundedDict[Hashable, _Memory](max_entries=MAX_REMEMBERED)

    def of(self, key: Hashable) -> frozenset[str]:
        """Return the names of what is to be left out of requests to the model, or of the session, `key` they are."""
        memory = self._memory_of(key)
        return frozenset(memory.unsupported.keys() - memory.required.keys())

    def required_of(self, key: Hashable) -> frozenset[str]:
        """Return the names of what is to be sent even where there is nothing of it."""
        return frozenset(self._memory_of(key).required)

    def learn(
        self, key: Hashable, error: ModelError, *, optional: Collection[str], requirable: Collection[str] = ()
    ) -> bool:
        """Take note if `error` blames what can be changed; return whether there is a changed request to be sent.

        `optional`: what of the refused request can be left out (`present_in`); `requirable`: what it lacks and can have.

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
        # The longest first: a model may take `reasoning`, and refuse but `reasoning.summary`.
        until = self._clock() + MEMORY_SECONDS
        for name in sorted({*optional, *requirable} - memory.required.keys(), key=lambda name: (-len(name), name)):
            verdict = _verdict(error, name)
            if verdict == "refused" and name in optional:
                # Also where another request has learned it meanwhile: this one was sent with it, the next one is not.
                if name not in memory.unsupported:
                    _log.warning("%s does not take %r: left out for %g s", _label(key), name, MEMORY_SECONDS)
                memory.unsupported[name] = until
                return True
            if verdict == "demanded" and name in requirable:
                _log.warning("%s demands %r: sent for %g s", _label(key), name, MEMORY_SECONDS)
                memory.required[name] = until
                return True
        return False

    def _memory_of(self, key: Hashable) -> _Memory:
        memory = self._memories[key] = self._memories.get(key) or _Memory()
        memory.forget(self._clock())
        return memory


def _label(key: Hashable) -> str:
    """Return the name of a model, or of a model and a session, as the log has it."""
    return " in session ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def present_in(body: Mapping[str, object], names: Iterable[str]) -> frozenset[str]:
    """Return those of the `names` that a request's body has: without the others, it would be the same.

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
"""Between two complaints: of sentences, of lists, and of lists as Python prints them."""


def _verdict(error: ModelError, name: str) -> Literal["refused", "demanded"] | None:
    """Return what is said of `name`: by the complaint that names it, or else by all of it."""
    if not _is_blamed(error, name):
        return None
    complaints = [clause for clause in _CLAUSE_END.split(error.message) if _names(clause, name)]
    for clause in (*complaints, error.message):
        if _DEMAND.search(clause):
            return "demanded"
        if _REFUSAL.search(clause):
            return "refused"
    return None


def _is_blamed(error: ModelError, name: str) -> bool:
    if error.parameter and _names(error.parameter, name):
        return True  # `reasoning.summary`, `include[0]`, `messages[2].reasoning_content`
    # Without a name of its own the sentence counts, for names that are no words of English.
    is_another = error.parameter and not error.parameter.startswith("messages")
    return not is_another and "_" in name and _names(error.message, name)


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
