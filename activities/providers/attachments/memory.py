"""What one endpoint's models are shown of attachments, and what their refusals taught (AGT-4, CTX-16).

An image that a vendor can't read would fail this request and every later one of the session. So a refused request is
sent again with fewer attachments, the others named in text: all of a kind if the model does not read the kind; the
oldest if they are too many or too large together; otherwise the one that the vendor names, or those of the newest
message that it has not accepted before, then all such, and at last all. That is no retry, since a refused request was
not processed, and the same one is never sent twice. A worker remembers for `MEMORY_SECONDS` what was refused: a kind by
model, a content by model and session, since the others in the request may have been the reason.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from turnkeeper.activities.providers.attachments.sight import Sight
from turnkeeper.activities.providers.attachments.visible_request import (
    Medium,
    id_of,
    media_in,
    media_of,
    visible_request,
)
from turnkeeper.activities.providers.protocol import AttachmentRefusal, ModelError
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.model_call import ModelRequest
from turnkeeper.stores.bounded_dict import BoundedDict

MAX_REMEMBERED = 10_000
"""Contents and kinds that are remembered; beyond that, the least recently used is forgotten."""

MEMORY_SECONDS = 600.0
"""How long a refusal is remembered. Then it costs one refused request to learn it again."""

MIN_LARGE_MEDIA = 1_000_000
"""Characters of base64 in a request from which they may be why it is too large."""

UNREADABLE = "(the model's provider could not read it)"
TOO_MUCH = "(no longer shown: together with the others it was too large for the model's provider)"
TOO_MANY = "(no longer shown: there were more than the model's provider accepts in a request)"

_log = logging.getLogger(__name__)


class AttachmentMemory:
    """The attachments that each model of an endpoint can't be shown. `clock` returns seconds."""

    def __init__(
        self,
        sight_of: Callable[[str], Sight],
        *,
        learns_sight: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show a model what `sight_of` its name says. With `learns_sight`, refusals of a whole kind are learned."""
        self._sight_of = sight_of
        self._learns_sight = learns_sight
        self._clock = clock
        self._blind = BoundedDict[tuple[str, str], float](max_entries=MAX_REMEMBERED)
        self._withheld = BoundedDict[tuple[str, str, str], tuple[str, float]](max_entries=MAX_REMEMBERED)
        self._accepted = BoundedDict[tuple[str, str], bool](max_entries=MAX_REMEMBERED)

    def show(self, name: str, request: ModelRequest, *, session_id: str) -> "VisibleRequest":
        """Return the request as the model `name` is shown it."""
        visible = visible_request(
            request, self._current_sight(name), withheld=lambda medium: self._note(session_id, name, medium)
        )
        return VisibleRequest(visible, name, session_id, self)

    def note_accepted(self, name: str, media: Iterable[Medium]) -> None:
        """Note that the vendor has answered a request with these, so it could read them."""
        for medium in media:
            self._accepted[(name, id_of(medium))] = True

    def learn(
        self,
        name: str,
        refusal: AttachmentRefusal,
        request: ModelRequest,
        body: Mapping[str, object],
        *,
        session_id: str,
    ) -> bool:
        """Remember what the vendor refused of the `request`, encoded as `body`; return whether to send fewer of it."""
        media = list(media_in(request))
        match refusal.problem:
            case "no_images" | "no_pdfs" | "no_media":
                return self._learns_sight and self._learn_blindness(name, refusal.problem, media)
            case "unreadable":
                blamed = _media_at(refusal.place, body, media) or self._suspects(name, request) or media
                return self._withhold(session_id, name, blamed, UNREADABLE)
            case "too_large":
                return self._withhold(session_id, name, _oldest_half(media), TOO_MUCH)
            case "too_many":
                return self._withhold(session_id, name, _oldest_beyond(refusal.limit, media), TOO_MANY)

    def _suspects(self, name: str, request: ModelRequest) -> list[Medium]:
        """Return the media of the newest message with any that the vendor has not accepted before."""
        for message in reversed(request.messages):
            if new := [medium for medium in media_of(message) if (name, id_of(medium)) not in self._accepted]:
                return new
        return []

    def _current_sight(self, name: str) -> Sight:
        by_name = self._sight_of(name)
        images, pdfs = (not self._is_blind(name, kind) for kind in ("no_images", "no_pdfs"))
        return Sight(images=by_name.images and images, pdfs=by_name.pdfs and pdfs)

    def _is_blind(self, name: str, kind: str) -> bool:
        until = self._blind.get((name, kind))
        return until is not None and until > self._clock()

    def _note(self, session_id: str, name: str, medium: str) -> str | None:
        note, until = self._withheld.get((session_id, name, medium)) or ("", 0.0)
        return note if until > self._clock() else None

    def _learn_blindness(self, name: str, problem: str, media: Iterable[Medium]) -> bool:
        kinds = {"no_images" if isinstance(medium, ImageAttachment) else "no_pdfs" for medium in media}
        blamed = kinds if problem == "no_media" else kinds & {problem}
        for kind in sorted(blamed):
            named = "images" if kind == "no_images" else "PDFs"
            _log.warning("%s reads no %s: they are named in text for %g s", name, named, MEMORY_SECONDS)
            self._blind[(name, kind)] = self._clock() + MEMORY_SECONDS
        return bool(blamed)

    def _withhold(self, session_id: str, name: str, media: Sequence[Medium], note: str) -> bool:
        if media:
            _log.warning(
                "%s refuses a request because of %d attachments: they are named in text for %g s",
                *(name, len(media), MEMORY_SECONDS),
            )
        for medium in media:
            self._withheld[(session_id, name, id_of(medium))] = (note, self._clock() + MEMORY_SECONDS)
        return bool(media)


class VisibleRequest:
    """A request as a model is shown it."""

    def __init__(self, request: ModelRequest, name: str, session_id: str, memory: AttachmentMemory) -> None:
        self.request = request
        self._name = name
        self._session_id = session_id
        self._memory = memory
        self._is_accepted = False

    def note_accepted(self) -> None:
        """Note that the vendor has begun to answer."""
        if not self._is_accepted:
            self._is_accepted = True
            self._memory.note_accepted(self._name, media_in(self.request))

    def learn(self, error: ModelError, body: Mapping[str, object]) -> bool:
        """Remember what the vendor refuses of the attachments in `body`; return whether to send fewer of them.

        Nothing is sent again once the answer has begun, since a part of it is published.
        """
        refusal = error.attachment_refusal
        if self._is_accepted or error.error_type == "refusal" or refusal is None:
            return False
        return self._memory.learn(self._name, refusal, self.request, body, session_id=self._session_id)


def _media_at(place: str, body: Mapping[str, object], media: Sequence[Medium]) -> list[Medium]:
    """Return the media at a `place` in the body, such as `messages.0.content.1.image.source`; none if it has no end.

    Names that are no keys are types: vendors write them in between.
    """
    first, *rest = re.findall(r"\w+", place) or [""]
    value = body.get(first)
    for part in rest:
        if isinstance(value, list) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(part, value)
    texts = _texts_in(value)
    return [medium for medium in media if any(text.endswith(_content(medium)) for text in texts)]


def _content(medium: Medium) -> str:
    return (medium.url if isinstance(medium, ImageAttachment) else None) or medium.data


def _texts_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts_in(one)]


def _oldest_beyond(limit: int | None, media: Sequence[Medium]) -> Sequence[Medium]:
    """Return all media but the newest `limit`, or but half of them if it is unknown; contents of the newest stay."""
    count = limit if limit is not None and limit < len(media) else len(media) // 2
    oldest, newest = media[: len(media) - count], set(map(id_of, media[len(media) - count :]))
    return [medium for medium in oldest if id_of(medium) not in newest] or oldest


def _oldest_half(media: Sequence[Medium]) -> Sequence[Medium]:
    """Return the oldest media with half of the data, at least one; none if there is little data."""
    sizes = [len(medium.data) for medium in media]
    total = sum(sizes)
    if total < MIN_LARGE_MEDIA:
        return []
    return media[: 1 + sum(size < total / 2 for size in accumulate(sizes))]
