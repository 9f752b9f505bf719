"""Calling a model, for `call_model` and `summarise`: find the request's context, return the complete answer (AGT-2).

A process-local cache passes large inputs from the workflow to its activities. The workflow writes a model request, or
what is to be archived, when it schedules the activity, and never reads it. The activity uses exactly that entry if it
runs in the same process, which is nearly always the case with one task queue, and queries the workflow otherwise. So
the conversation never travels through Temporal's history, and nothing depends on this cache: it may drop entries at any
time.

Small models write arguments of a type that the tool's schema does not have: `"2"` for 2. Servers would convert them
too. It is done when the answer arrives, so the arguments that people approve are those that run (AGT-7).
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache
from pydantic import JsonValue
from temporalio import activity
from temporalio.client import Client

from turnkeeper.activities.activity_context import current_run_id, current_session_id, query_own_workflow
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.spending import PriceList, Spending
from turnkeeper.models.context.model_view import digest_of
from turnkeeper.models.session.archive import ArchiveMove
from turnkeeper.models.transcript.model_call import (
    CallPart,
    IndexEntry,
    ModelMessage,
    ModelRequest,
    ModelRequestPage,
    ModelRequestQuery,
    ModelResponse,
    RefusedPart,
    RequestHead,
    ToolSpec,
)

MAX_BYTES = 128 * 1024 * 1024

Content = TypeVar("Content")


@dataclass(frozen=True)
class CacheKey:
    """Identifies one request, or one move to the archive, of one run, and its exact content."""

    run_id: str
    number: int
    digest: str


class LocalContextCache(Generic[Content]):
    """Contents by key. The least recently used are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._contents = LRUCache[CacheKey, tuple[Content, int]](max_bytes, getsizeof=lambda entry: entry[1])
        # Workflow code runs in the worker's threads, activities in its event loop.
        self._lock = Lock()

    def put(self, key: CacheKey, content: Content, *, size: int) -> None:
        """Store `content`, about `size` bytes. It must not be changed afterwards."""
        with self._lock, suppress(ValueError):  # larger than the whole cache
            self._contents.pop(key, None)
            self._contents[key] = content, size

    def get(self, key: CacheKey) -> Content | None:
        """Return the content, if it is still cached. It stays, since the activity may be retried."""
        with self._lock:
            entry = self._contents.get(key)
        return entry and entry[0]

    def discard(self, key: CacheKey) -> None:
        with self._lock:
            self._contents.pop(key, None)


REQUESTS: LocalContextCache[ModelRequest] = LocalContextCache()
"""Model requests, written by workflow code and read by activities. Global: nothing can be injected into workflows."""

ENTRIES: LocalContextCache[IndexEntry] = LocalContextCache(max_bytes=8 * 1024 * 1024)
"""The list entries of sessions, under the keys of their model requests."""

MOVES: LocalContextCache[ArchiveMove] = LocalContextCache()
"""Moves to the archive."""


_log = logging.getLogger(__name__)


class ProviderSource(Protocol):
    """Finds the provider of a model. The worker's composition root injects one."""

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Return the provider of `provider:name` and the name. Raises `ModelError`."""
        ...


class ModelClient:
    """Calls models for activities."""

    def __init__(self, providers: ProviderSource, client: Client, texts: LargeTexts, prices: PriceList) -> None:
        self._providers = providers
        self._client = client
        self._texts = texts
        self._prices = prices

    async def load_request(self, number: int, *, digest: str) -> ModelRequest | None:
        """Return the session's request `number` with its large texts restored.

        `None` if the workflow no longer has exactly the request of `digest`. Raises `WorkflowSilentError` if it does
        not answer.
        """
        cached = REQUESTS.get(CacheKey(current_run_id(), number, digest))
        request = cached or await self._ask_workflow(number, digest)
        return request and await self._texts.resolve(current_session_id(), request)

    def spending(self, model: str, *, lasting_failures: Mapping[str, int] | None = None) -> Spending:
        """Return the usage of the running activity's failed attempts with `model`.

        `lasting_failures`: how often the same request failed in each way before this activity.
        """
        return Spending(self._prices, model=model, lasting_failures=lasting_failures)

    async def answer(
        self,
        model: str,
        request: ModelRequest,
        *,
        number: int,
        spending: Spending,
        waits: int = 0,
        left_out: Sequence[RefusedPart] = (),
        may_be_too_long: bool = False,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> ModelResponse:
        """Return the model's complete answer, with typed arguments, and its cost if known. Raises `ModelError`.

        `on_delta` is called with each piece as it arrives; `spending` has the usage until the answer is complete.
        `left_out` and `may_be_too_long` are those of the call.
        """
        provider, name = self._providers.resolve(model)
        attempt, meter = activity.info(), spending.begin(request)
        info = CallInfo(
            session_id=current_session_id(),
            request=number,
            attempt=attempt.attempt,
            waits=waits,
            meter=meter,
            left_out=tuple(left_out),
            may_be_too_long=may_be_too_long,
        )

        def take(delta: Delta) -> None:
            meter.write(delta.text)
            if on_delta:
                on_delta(delta)

        try:
            async with _in_time(attempt, name=name):
                response = await _complete_answer(provider.stream(name, request, info), take)
        except ModelError as error:
            # A silent vendor was probably working, and bills for it.
            meter.has_begun |= error.error_type == "timeout"
            spending.note_failure(error)
            raise
        spending.note_complete_answer()
        return self._prices.priced(with_types(response, request.head.tools), model=model)

    async def _ask_workflow(self, number: int, digest: str) -> ModelRequest | None:
        head, messages, offset = RequestHead(), list[ModelMessage](), 0
        while True:
            query = ModelRequestQuery(request=number, offset=offset)
            page = await query_own_workflow(self._client, "get_model_request", query, ModelRequestPage)
            head = page.head or head
            if page.entry:
                key = CacheKey(current_run_id(), number, digest)
                ENTRIES.put(key, page.entry, size=len(page.entry.model_dump_json()))
            messages.extend(page.messages)
            if page.next_offset is None:
                break
            offset = page.next_offset
        request = ModelRequest(head=head, messages=messages)
        if (actual := digest_of(request)) == digest:
            return request
        _log.error("Model request %d has the digest %s in its workflow, but %s in its call", number, actual, digest)
        return None


@asynccontextmanager
async def _in_time(info: activity.Info, *, name: str) -> AsyncIterator[None]:
    """Time out before Temporal would, with time for a last heartbeat. Raises `ModelError` that names the model.

    If the time of the whole turn ends first, Temporal times out instead.
    """
    limit, end = info.start_to_close_timeout, info.schedule_to_close_timeout
    seconds = limit.total_seconds() if limit and (end is None or limit < end) else None
    try:
        async with asyncio.timeout(seconds and seconds - min(1.0, seconds / 4)):
            yield
    except TimeoutError:
        late = f"{name} did not answer within {seconds:,g} s, which is limits.model_timeout"
        raise ModelError("timeout", late, lasting="model_timeout") from None


async def _complete_answer(
    stream: AsyncGenerator[Delta | ModelResponse, None], on_delta: Callable[[Delta], None]
) -> ModelResponse:
    """Return the response at the end of the stream. Raises `ModelError` if the stream has none (AGT-3)."""
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
            on_delta(event)
    raise ModelError("connection", "the answer broke off before its end")


# ---- arguments


MAX_LEVELS = 20

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,14})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?([eE][+-]?\d{1,2})?")

Schema = JsonValue


def with_types(response: ModelResponse, tools: Iterable[ToolSpec]) -> ModelResponse:
    """Return the response, with texts in its calls' arguments converted where the schemas of `tools` say so."""
    schemas = {tool.name: tool.input_schema for tool in tools}
    parts = [
        part.model_copy(update={"args": convert(part.args, schemas.get(part.name))})
        if isinstance(part, CallPart) and isinstance(part.args, dict)
        else part
        for part in response.parts
    ]
    return response if parts == response.parts else response.model_copy(update={"parts": parts})


def convert(value: JsonValue, schema: Schema, levels: int = MAX_LEVELS) -> JsonValue:
    """Return `value` with numbers and booleans in place of texts that are exactly one, where `schema` has no text.

    >>> schema = {"properties": {"n": {"type": "integer"}, "all": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}
    >>> convert({"n": "2", "all": "true", "text": "3"}, schema)
    {'n': 2, 'all': True, 'text': '3'}
    >>> [convert(text, {"type": "integer"}) for text in ("2.0", " 2", "02", "1e3", "9" * 16)]
    ['2.0', ' 2', '02', '1e3', '9999999999999999']
    >>> convert("2", {"type": ["integer", "string"]}), convert(["1.5"], {"items": {"type": "number"}})
    ('2', [1.5])
    """
    if not isinstance(schema, dict) or not levels:
        return value
    if isinstance(value, str):
        return _number_or_boolean(value, _types(schema))
    if isinstance(value, list):
        return [convert(item, schema.get("items"), levels - 1) for item in value]
    if isinstance(value, dict):
        properties = schema.get("properties")
        schemas = properties if isinstance(properties, dict) else {}
        return {key: convert(item, schemas.get(key), levels - 1) for key, item in value.items()}
    return value


def _number_or_boolean(text: str, types: set[str]) -> JsonValue:
    if "string" in types:
        return text
    is_one = (
        ("integer" in types and _INTEGER.fullmatch(text))
        or ("number" in types and _NUMBER.fullmatch(text))
        or ("boolean" in types and text in ("true", "false"))
    )
    value: JsonValue = json.loads(text) if is_one else text
    return value


def _types(schema: dict[str, JsonValue]) -> set[str]:
    """Return the types that a schema accepts; `string` if it does not say."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return {kind for option in options for kind in (_types(option) if isinstance(option, dict) else {"string"})}
    kind = schema.get("type", "string")
    return {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}
