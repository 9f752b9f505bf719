"""The parts that the models of one endpoint refuse, remembered for a day and then tried again (AGT-9).

Parameters, tools and kinds of attachments are the same in all sessions, so they are remembered by model. Fields of
messages and single contents depend on a session's past, so they are remembered by model and session.
"""

import logging
import time
from collections.abc import Callable, Iterable

from cachetools import LRUCache

from turnkeeper.activities.providers.visible_request import Medium, id_of
from turnkeeper.models.transcript.refused_parts import RefusedPart

MAX_REMEMBERED = 10_000
"""Models and sessions that are remembered; beyond that, the one that learned longest ago is forgotten."""

MAX_PARTS = 500
"""Parts that are remembered of each; beyond that, the oldest is forgotten."""

MEMORY_SECONDS = 86_400.0
"""How long a refusal is remembered. Then it costs one refused request to learn it again."""

_OF_A_SESSION = frozenset({"field", "required", "attachment"})

_log = logging.getLogger(__name__)

_Parts = LRUCache[tuple[str, str, str], tuple[RefusedPart, float]]
"""Parts by their key, each with the time until which it is remembered."""


class RefusalMemory:
    """The refused parts of one endpoint's models, and the contents that they have read. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts = LRUCache[tuple[str, str], _Parts](maxsize=MAX_REMEMBERED)
        self._read_media = LRUCache[tuple[str, str], bool](maxsize=MAX_REMEMBERED)

    def parts_of(self, model: str, session_id: str) -> list[RefusedPart]:
        """Return what to leave out of a session's requests to the model."""
        now = self._clock()
        learned = [*self._of(model).values(), *self._of(model, session_id).values()]
        return [part for part, until in learned if until > now]

    def learn(self, model: str, session_id: str, parts: Iterable[RefusedPart]) -> None:
        """Remember the parts from now on; the log names each new one."""
        now = self._clock()
        for part in parts:
            if part.kind == "state":
                continue  # the session drops it, and later steps have other blocks
            key = (model, session_id if part.kind in _OF_A_SESSION else "")
            learned = self._parts[key] = self._of(*key)
            earlier, until = learned.get(part.key, (None, 0.0))
            if until <= now or earlier is None or earlier.limit != part.limit:
                _log.warning("%s refused a part of a request, left out for %g s: %s", model, MEMORY_SECONDS, part.text)
            learned[part.key] = (part, now + MEMORY_SECONDS)

    def _of(self, model: str, session_id: str = "") -> _Parts:
        return self._parts.get((model, session_id)) or _Parts(maxsize=MAX_PARTS)

    def texts(self) -> dict[str, list[str]]:
        """Return what is remembered of each model, for people: of all its sessions, not of single ones."""
        now = self._clock()
        return {
            model: [part.text for part, until in parts.values() if until > now]
            for (model, session_id), parts in self._parts.items()
            if not session_id
        }

    def note_read(self, model: str, media: Iterable[Medium]) -> None:
        """Note that the vendor has answered a request with these, so it could read them."""
        for medium in media:
            self._read_media[(model, id_of(medium))] = True

    def has_read(self, model: str, medium: Medium) -> bool:
        return (model, id_of(medium)) in self._read_media
