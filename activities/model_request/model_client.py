"""Asking a model: from the coordinates of a request to its context, and on to the provider's whole answer (AGT-2).

What `call_model` and `summarise` share.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from temporalio import activity
from temporalio.client import Client

from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.model_request.local_context_cache import REQUESTS, ContextKey
from turnkeeper.activities.model_request.spending import PriceList, Spending
from turnkeeper.activities.own_workflow import current_run_id, current_session_id, query_own_workflow
from turnkeeper.activities.providers.protocol import CallContext, Delta, ModelError, Provider
from turnkeeper.models.context.model_view import digest_of
from turnkeeper.models.transcript.model_call import (
    ModelMessage,
    ModelRequest,
    ModelRequestPage,
    ModelRequestQuery,
    ModelResponse,
    RequestHead,
)


class ProviderRegistry(Protocol):
    """Finds the provider of a model; the worker's composition root injects one."""

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Return the provider of `provider:name` and the name. Raises `ModelError`."""
        ...


class ModelClient:
    """The way from an activity to a model."""

    def __init__(self, providers: ProviderRegistry, client: Client, texts: LargeTexts, prices: PriceList) -> None:
        self._providers = providers
        self._client = client
        self._texts = texts
        self._prices = prices

    async def context_of(self, number: int, *, digest: str) -> ModelRequest | None:
        """Return the session's request `number` with its large texts in their places.

        `None` where the workflow no longer has exactly the one that `digest` names. Raises `WorkflowSilentError`
        where it does not answer.
        """
        cached = REQUESTS.get(ContextKey(current_run_id(), number, digest))
        request = cached or await self._ask_workflow(number, digest)
        return request and await self._texts.resolve(current_session_id(), request)

    def spending(self, model: str, *, unclear_answers: int = 0) -> Spending:
        """Return what the running activity's attempts have spent in vain on `model`.

        `unclear_answers`: how many answers to the same request were unclear before this activity.
        """
        return Spending(self._prices, model=model, unclear_answers=unclear_answers)

    async def answer(
        self,
        model: str,
        request: ModelRequest,
        *,
        number: int,
        spending: Spending,
        wait_count: int = 0,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> ModelResponse:
        """Return the model's whole answer, with its cost where that is known. Raises `ModelError`.

        `on_delta` is told of each piece of it as it comes; what it takes until it is whole is in `spending`.
        """
        provider, name = self._providers.resolve(model)
        info, meter = activity.info(), spending.begin(request)
        context = CallContext(
            session_id=current_session_id(), request=number, attempt=info.attempt, round=wait_count, meter=meter
        )

        def take(delta: Delta) -> None:
            meter.write(delta.text)
            if on_delta:
                on_delta(delta)

        try:
            async with _in_time(info):
                response = await _whole_answer(provider.stream(name, request, context), take)
        except ModelError as error:
            # Silence says nothing of whether the vendor was at work; it mostly was.
            meter.has_begun |= error.error_type == "timeout"
            spending.note_failure(error)
            raise
        spending.note_whole_answer()
        return self._prices.priced(response, model=model)

    async def _ask_workflow(self, number: int, digest: str) -> ModelRequest | None:
        head, messages, offset = RequestHead(), list[ModelMessage](), 0
        while True:
            query = ModelRequestQuery(request=number, offset=offset)
            page = await query_own_workflow(self._client, "get_model_request", query, ModelRequestPage)
            head = page.head or head
            messages.extend(page.messages)
            if page.next_offset is None:
                break
            offset = page.next_offset
        request = ModelRequest(head=head, messages=messages)
        return request if digest_of(request) == digest else None


@asynccontextmanager
async def _in_time(info: activity.Info) -> AsyncIterator[None]:
    """Give up before Temporal would, with time for a last heartbeat: what takes too long is a failure like any other.

    Not where the time of the whole turn ends first: that is Temporal's to say. Raises `ModelError`.
    """
    limit, end = info.start_to_close_timeout, info.schedule_to_close_timeout
    seconds = limit.total_seconds() if limit and (end is None or limit < end) else None
    try:
        async with asyncio.timeout(seconds and seconds - min(1.0, seconds / 4)):
            yield
    except TimeoutError:
        raise ModelError("timeout", f"no whole answer within {seconds:,g} s") from None


async def _whole_answer(
    stream: AsyncGenerator[Delta | ModelResponse, None], on_delta: Callable[[Delta], None]
) -> ModelResponse:
    """Return the response that ends the stream; one that ends without was cut off (AGT-3). Raises `ModelError`."""
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
            on_delta(event)
    raise ModelError("connection", "the answer broke off before its end")
