"""A provider that asks over HTTP, with a vendor's SDK as its transport (AGT-3, AGT-4, AGT-9).

A subclass says what is special about its vendor: how a request is encoded, how the events of an answer are read, what
may be left out of a request. All else is the same for all vendors: connections and their limits, errors, parts that are
refused, what an answer has cost that breaks off.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import ModuleType
from typing import Any, ClassVar, Self

from turnkeeper.activities.providers.protocol import CallInfo, Delta, Meter, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.providers.refused_parts.parts import Body, Parts, RefusableApi
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts
from turnkeeper.activities.providers.wire.transport import Event, Transport, VendorStream
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.tokens import weighted_chars
from turnkeeper.models.transcript.model_call import MAX_TOOLS, ModelRequest, ModelResponse, ToolSpec, supported_tools
from turnkeeper.models.transcript.trajectory import Usage

_log = logging.getLogger(__name__)


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
        self,
        *,
        silence_timeout: float,
        base_url: str | None = None,
        api_key: str | None = None,
        sends_key: bool = True,
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
