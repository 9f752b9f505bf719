"""Asking a model: the activity `call_model`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.failures import judge
from activities.hand_over import REQUESTS, HandOverKey
from activities.heartbeat import heartbeating
from activities.large_texts import LargeTexts
from activities.providers.protocol import CallContext, Delta, ModelError, Provider
from models.context.model_view import digest_of
from models.large_texts import STATE_INLINE_BYTES
from models.limits import LARGEST_ANSWER_BYTES, SMALL_TEXT_BYTES
from models.model_call import (
    ModelCall,
    ModelCallOutcome,
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


class ModelActivities:
    """Activities that talk to models."""

    def __init__(self, providers: ProviderRegistry, client: Client, texts: LargeTexts) -> None:
        """Ask `providers`; read contexts that were prepared in another process through `client`."""
        self._providers = providers
        self._texts = texts
        self._client = client

    @activity.defn
    async def call_model(self, call: ModelCall) -> ModelCallOutcome:
        """Return the model's whole answer to exactly the context that `call.digest` names (AGT-2).

        A second run sees the same context and asks the model again: it may be billed twice, it is recorded once.
        """
        async with heartbeating():
            request = await self._context_of(call)
            if request is None:
                return ModelCallOutcome(repeat="digest_mismatch")
            try:
                response = await self._ask(call, await self._texts.resolve(session_id(), request))
            except ModelError as error:
                return judge(error, attempt=activity.info().attempt, rounds=call.round)
            return ModelCallOutcome(response=await self._storable(response, call))

    async def _ask(self, call: ModelCall, request: ModelRequest) -> ModelResponse:
        provider, name = self._providers.resolve(call.model)
        info = activity.info()
        context = CallContext(session_id=session_id(), request=call.request, attempt=info.attempt, round=call.round)
        return await _whole_answer(provider.stream(name, request, context))

    async def _context_of(self, call: ModelCall) -> ModelRequest | None:
        """Return the context, or `None` where the workflow no longer has exactly that one."""
        handed_over = REQUESTS.get(HandOverKey(_own_run(), call.request, call.digest))
        return handed_over or await self._ask_workflow(call)

    async def _ask_workflow(self, call: ModelCall) -> ModelRequest | None:
        # Pinned to the run: the session may have continued as new since. Errors of the query are worth a retry.
        session = self._client.get_workflow_handle(session_id(), run_id=_own_run())
        head, messages, offset = RequestHead(), [], 0
        while True:
            page = await session.query(
                "get_model_request",
                ModelRequestQuery(request=call.request, offset=offset),
                result_type=ModelRequestPage,
            )
            head = page.head or head
            messages.extend(page.messages)
            if page.next_offset is None:
                break
            offset = page.next_offset
        request = ModelRequest(head=head, messages=messages)
        return request if digest_of(request) == call.digest else None

    async def _storable(self, response: ModelResponse, call: ModelCall) -> ModelResponse:
        """Return the response as the session can hold it: large texts by reference (SES-15, SES-16).

        Raises `ApplicationError` `too_large` if it is too large even so.
        """
        size = _json_size(response)
        if size > LARGEST_ANSWER_BYTES:
            raise _too_large(size, LARGEST_ANSWER_BYTES)
        if size <= min(call.inline_bytes, STATE_INLINE_BYTES):
            return response  # as nearly always: nothing in it can be large
        for inline_bytes in (call.inline_bytes, SMALL_TEXT_BYTES):
            kept = await self._texts.keep_response(session_id(), response, inline_bytes, max_bytes=call.max_bytes)
            size = _json_size(kept)
            if size <= call.max_bytes:
                return kept
        raise _too_large(size, call.max_bytes)


def session_id() -> str:
    """Return the id of the session that this activity runs for."""
    return activity.info().workflow_id or ""


def _own_run() -> str:
    return activity.info().workflow_run_id or ""


async def _whole_answer(stream: AsyncGenerator[Delta | ModelResponse, None]) -> ModelResponse:
    """Return the response that ends the stream; one that ends without was cut off (AGT-3). Raises `ModelError`."""
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
    raise ModelError("connection", "the answer broke off before its end")


def _json_size(response: ModelResponse) -> int:
    return len(response.model_dump_json().encode())


def _too_large(size: int, most: int) -> ApplicationError:
    return ApplicationError(f"it has {size:,} bytes, {most:,} are allowed", type="too_large", non_retryable=True)
