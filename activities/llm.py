"""Asking a model: the activity `call_model`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.failures import judge
from activities.hand_over import HAND_OVER, RequestKey
from activities.heartbeat import heartbeating
from activities.providers.protocol import CallContext, Delta, ModelError, Provider
from models.context.model_view import digest_of
from models.limits import ANSWER_BYTES
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

    def __init__(self, providers: ProviderRegistry, client: Client) -> None:
        """Ask `providers`; read contexts that were prepared in another process through `client`."""
        self._providers = providers
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
                response = await self._ask(call, request)
            except ModelError as error:
                return judge(error, attempt=activity.info().attempt, rounds=call.round)
        return ModelCallOutcome(response=_storable(response))

    async def _ask(self, call: ModelCall, request: ModelRequest) -> ModelResponse:
        provider, name = self._providers.resolve(call.model)
        info = activity.info()
        context = CallContext(
            session_id=info.workflow_id or "", request=call.request, attempt=info.attempt, round=call.round
        )
        return await _whole_answer(provider.stream(name, request, context))

    async def _context_of(self, call: ModelCall) -> ModelRequest | None:
        """Return the context, or `None` where the workflow no longer has exactly that one."""
        handed_over = HAND_OVER.get(RequestKey(_own_run(), call.request, call.digest))
        return handed_over or await self._ask_workflow(call)

    async def _ask_workflow(self, call: ModelCall) -> ModelRequest | None:
        # Pinned to the run: the session may have continued as new since. Errors of the query are worth a retry.
        session = self._client.get_workflow_handle(activity.info().workflow_id or "", run_id=_own_run())
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


def _own_run() -> str:
    return activity.info().workflow_run_id or ""


async def _whole_answer(stream: AsyncGenerator[Delta | ModelResponse, None]) -> ModelResponse:
    """Return the response that ends the stream; one that ends without was cut off (AGT-3). Raises `ModelError`."""
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
    raise ModelError("connection", "the answer broke off before its end")


def _storable(response: ModelResponse) -> ModelResponse:
    """Pass a response that workflow state can hold (SES-16). Raises `ApplicationError` `too_large`."""
    size = len(response.model_dump_json().encode())
    if size > ANSWER_BYTES:
        raise ApplicationError(
            f"it has {size:,} bytes, {ANSWER_BYTES:,} are allowed", type="too_large", non_retryable=True
        )
    return response
