"""A provider that asks over HTTP, with a vendor's SDK as its transport (AGT-3, AGT-4, AGT-9).

A subclass says what is special about its vendor: how a request is encoded, how the events of an answer are read, what
may be left out of a request. All else is the same for all vendors: connections and their limits, errors, parts that are
refused, what an answer has cost that breaks off.

A request that is refused is sent again without the part that the vendor refuses. That is not a retry: a refused request
was not processed, and the same one is never sent twice. Nothing is sent again once the answer has begun, since a part
of it is published. What the vendor names is left out and remembered at once. Where it names nothing, one more class of
parts is left out in each try; if that passes, only the last class was the reason, so only that is remembered, and the
others are sent again.

What is refused is remembered in a worker for a day and then tried again. Parameters, tools and kinds of attachments are
the same in all sessions, so they are remembered by model. Fields of messages and single contents depend on a session's
past, so they are remembered by model and session.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import ModuleType
from typing import Any, ClassVar, Self

from cachetools import LRUCache

from turnkeeper.activities.providers.blamed_parts import blamed_parts, is_refusal, suspects
from turnkeeper.activities.providers.protocol import CallInfo, Delta, Meter, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.providers.refused_parts import Body, Encode, Parts, RefusableApi, SentRequest, sent_request
from turnkeeper.activities.providers.request_encoding import Medium, id_of, media_in
from turnkeeper.activities.providers.transport import Event, Transport, VendorStream
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.texts import weighted_chars
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import (
    MAX_TOOLS,
    ModelRequest,
    ModelResponse,
    RefusedPart,
    ToolSpec,
    supported_tools,
)

MAX_TRIES = 8
"""Requests of one call, the first included."""

Send = Callable[[Body], AsyncGenerator[Delta | ModelResponse, None]]
"""Sends a body once; yields deltas, then the whole response. Raises `ModelError`."""


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


class RefusedParts:
    """The parts that one endpoint's models refuse, and the contents that they have read. `clock` returns seconds."""

    def __init__(self, api: RefusableApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.api = api
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

    async def answer(
        self, name: str, request: ModelRequest, info: CallInfo, encode: Encode, send: Send
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Ask the model `name`, without what it refuses; yield deltas, then the whole response.

        The response says what was left out that `info` does not know. Raises `ModelError`.
        """
        tries = _Tries(self, name, request, info, encode)
        while True:
            has_begun = False
            try:
                async with aclosing(send(tries.current.body)) as pieces:
                    async for piece in pieces:
                        if not has_begun:
                            has_begun = True
                            tries.note_accepted()
                        yield tries.with_left_out(piece) if isinstance(piece, ModelResponse) else piece
            except ModelError as error:
                if has_begun or not tries.change(error):
                    if error.error_type == "stale_reasoning":
                        error.error_type = "bad_request"  # it is refused with and without its blocks
                    raise error from None
            else:
                return


class _Tries:
    """The requests of one call: `current` is the present one."""

    def __init__(self, memory: RefusedParts, name: str, request: ModelRequest, info: CallInfo, encode: Encode) -> None:
        self._api = memory.api
        self._memory = memory
        self._name = name
        self._request = request
        self._info = info
        self._encode = encode
        self._named: list[RefusedPart] = []
        self._suspected: list[Sequence[RefusedPart]] = []
        """The classes that are left out without a name, in the order in which they were."""
        self._remembered = Parts([*memory.parts_of(name, info.session_id), *info.left_out])
        self.current = self._without(self._remembered)
        self._refused: list[Body] = []

    def _without(self, parts: Parts) -> SentRequest:
        return sent_request(self._name, self._request, parts, self._api, self._encode)

    def note_accepted(self) -> None:
        """Remember what the vendor has read, and the last class that was left out without a name."""
        self._memory.note_read(self._name, media_in(self.current.request))
        self._memory.learn(self._name, self._info.session_id, self._guessed)

    def with_left_out(self, response: ModelResponse) -> ModelResponse:
        """Return the response with the parts that the session does not know yet."""
        carried = {part.key for part in self._info.left_out}
        remembered = [part for part in self._remembered if part.key not in carried and self._has_effect(part)]
        left_out = Parts([*remembered, *self._named, *self._guessed])
        return response.model_copy(update={"left_out": list(left_out)}) if list(left_out) else response

    def change(self, error: ModelError) -> bool:
        """Change the request because of the error; return whether there is one to send that was not sent before."""
        if not is_refusal(error):
            return False
        self._refused.append(self.current.body)
        if len(self._refused) >= MAX_TRIES:
            return False
        blamed = list(blamed_parts(error, self.current, self._request, self._api, has_read=self._has_read))
        for parts in blamed:
            if self._leave_out(parts):
                lasting = [part for part in parts if part.reason]
                self._named += lasting
                self._memory.learn(self._name, self._info.session_id, lasting)
                return True
        error.is_unexplained = error.error_type == "bad_request" and not any(blamed)
        return error.error_type == "bad_request" and self._leave_out_a_class()

    def _leave_out_a_class(self) -> bool:
        classes = suspects(
            self.current, self._request, self._api, has_read=self._has_read, is_head_accepted=self._info.may_be_too_long
        )
        for parts in classes:
            if self._leave_out(parts):
                self._suspected.append(parts)
                return True
        return False

    def _leave_out(self, parts: Sequence[RefusedPart]) -> bool:
        """Leave out more parts; return whether the request has not been sent like this."""
        if not parts:
            return False
        changed = self._without(self.current.parts.with_more(parts))
        if changed.body in self._refused:
            return False
        self.current = changed
        return True

    @property
    def _guessed(self) -> Sequence[RefusedPart]:
        return self._suspected[-1] if self._suspected else ()

    def _has_effect(self, part: RefusedPart) -> bool:
        others = Parts([other for other in self.current.parts if other.key != part.key])
        return self._without(others).body != self.current.body

    def _has_read(self, medium: Medium) -> bool:
        return self._memory.has_read(self._name, medium)


class AnswerAccumulator(ABC):
    """An answer while it arrives. There is none until `is_complete`, however the stream ends.

    What an event of an unexpected shape raises (`KeyError` and its like) becomes a `ModelError`.
    """

    is_complete = False
    """Nothing is missing, except maybe counts."""
    failure: Event | None = None
    """The vendor's error, if it stands in an event of another kind than `error`."""
    quiet_events: ClassVar[frozenset[str]] = frozenset()
    """Types of events that the vendor sends before it has read the request, and so before it bills for it."""

    @property
    @abstractmethod
    def usage_so_far(self) -> Usage | None:
        """The vendor's counts so far, without output tokens until it has sent those."""

    @abstractmethod
    def add(self, event: Event) -> Iterable[Delta]:
        """Add the next event; return its deltas."""

    @abstractmethod
    def response(self, *, request_id: str | None) -> ModelResponse:
        """Return the answer, once it is complete. Raises `ModelError` if it is invalid after all."""

    def arguments_in(self, event: Event) -> Iterable[str]:
        """Return what an event adds to the arguments of calls, which are in no delta, but billed."""
        return ()

    def note(self, event: Event, meter: Meter) -> None:
        """Note on `meter` what the answer has cost with this event."""
        if self.failure is None or self.usage_so_far:
            meter.has_begun |= event.get("type") not in self.quiet_events
            meter.usage_so_far = self.usage_so_far or meter.usage_so_far
            meter.written_chars += sum(map(weighted_chars, self.arguments_in(event)))


class VendorProvider(Provider):
    """The models of one endpoint of a vendor."""

    path: ClassVar[str]
    """Where requests are sent, below the vendor's address."""
    refusable: RefusableApi
    """What may be left out of a request."""
    limits_tools: ClassVar[bool] = False
    """Whether at most `MAX_TOOLS` tools are offered (`supported_tools`); the log names the others."""
    run_out = 0.5
    """Seconds to read on after an answer is complete: for its usage, and so that its connection can be reused."""

    def __init__(
        self, *, silence_timeout: float, base_url: str | None = None, api_key: str | None = None, sends_key: bool = True
    ) -> None:
        """Send requests to `base_url` with `api_key`; `None`: what the SDK finds in the environment.

        `silence_timeout`: for how many seconds the vendor may send nothing.
        """
        self.address = {"base_url": base_url, "api_key": api_key}
        self._transport = Transport(self.vendor, self.client, silence_timeout=silence_timeout, sends_key=sends_key)
        self._refused = RefusedParts(self.refusable)
        self._logged_tools: set[str] = set()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(silence_timeout=settings.model_silence_timeout)

    @abstractmethod
    def client(self, sdk: ModuleType, http: Any) -> Any:
        """Return the SDK's asynchronous client for `address`, with this `http_client` and without retries.

        It may raise what the SDK raises, and `vendor.no_key_error()`.
        """

    @abstractmethod
    def encode(self, request: ModelRequest, name: str, info: CallInfo, parts: Parts) -> Body:
        """Return the body that asks the model `name`. Pure: the same request gives the same bytes.

        Images and PDFs are the only attachments left. Of `parts` it leaves out the fields of messages.
        """

    @abstractmethod
    def accumulator(self, name: str, request: ModelRequest, info: CallInfo) -> AnswerAccumulator:
        """Return what reads the answer of the model `name` to this request."""

    def left_out(self) -> Mapping[str, Sequence[str]]:
        return self._refused.texts()

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            example = f"{self.vendor.name}:{self.vendor.example}"
            raise ModelError("not_found", f"write its name after the colon, as in {example!r}")
        if self.limits_tools:
            self._log_omitted(request.head.tools)

        def encode(trimmed: ModelRequest, parts: Parts) -> Body:
            return self.encode(trimmed, name, info, parts)

        def send(body: Body) -> AsyncGenerator[Delta | ModelResponse, None]:
            return self._answer(body, self.accumulator(name, request, info), info.meter)

        async with aclosing(self._refused.answer(name, request, info, encode, send)) as answer:
            async for piece in answer:
                yield piece

    async def _answer(
        self, body: Body, accumulator: AnswerAccumulator, meter: Meter
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Send the body once; yield the deltas of the answer, then the whole of it. Raises `ModelError`."""
        transport = self._transport
        stream = VendorStream(transport, self.path, body)
        async with aclosing(stream.events()) as events:
            async for event in events:
                with transport.naming_read_errors():
                    deltas = list(accumulator.add(event))
                    accumulator.note(event, meter)
                if accumulator.failure is not None:
                    raise stream.failure_error(accumulator.failure)
                for delta in deltas:
                    yield delta
                if accumulator.is_complete:
                    break
            else:
                raise stream.early_end_error()
            with suppress(TimeoutError, ModelError), transport.naming_read_errors():
                async with asyncio.timeout(self.run_out):
                    async for event in events:
                        accumulator.add(event)
                        accumulator.note(event, meter)
        with transport.naming_read_errors():
            response = accumulator.response(request_id=stream.request_id)
        yield response

    def _log_omitted(self, tools: Sequence[ToolSpec]) -> None:
        """Log tools that are omitted because there are too many; each one once."""
        excluded = {tool.name for tool in supported_tools(tools)} | self._logged_tools
        omitted = [tool.name for tool in tools if tool.name not in excluded]
        if omitted:
            self._logged_tools.update(omitted)
            _log.warning("%s takes %d tools; not offered: %s", self.vendor.title, MAX_TOOLS, ", ".join(omitted))
