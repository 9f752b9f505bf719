"""A session that does not answer its own activities: on a busy machine, and while its worker stops (OPS-8, OPS-10)."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput
from temporalio.service import RPCError, RPCStatusCode

from tests.harness import BOUND, Environment, environment
from turnkeeper.activities.call_model import SILENCE_SECONDS
from turnkeeper.activities.model_client import REQUESTS
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.session.messages import SessionInput

GRACE = 60.0
"""Seconds that a stopping worker waits for its activities: what ends sooner was given back."""


class FullBuffer(Interceptor):
    """Rejects queries of activities as a busy server does, while `is_on`."""

    def __init__(self) -> None:
        self.is_on = True
        self.refused = asyncio.Event()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Refusing(next, self)


class _Refusing(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, buffer: FullBuffer) -> None:
        super().__init__(next)
        self._buffer = buffer

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        if self._buffer.is_on and input.query == "get_model_request":
            self._buffer.refused.set()
            raise RPCError("consistent query buffer is full, cannot accept new", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        return await super().query_workflow(input)


@pytest.fixture
def buffer() -> FullBuffer:
    return FullBuffer()


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every activity as if in another process than its workflow task."""
    monkeypatch.setattr(REQUESTS, "get", lambda key: None)


@pytest.fixture
async def env(temporal: Client, buffer: FullBuffer) -> AsyncIterator[Environment]:
    client = Client(**{**temporal.config(), "interceptors": [buffer]})
    async with environment(client) as env:
        yield env


async def test_ops_10_a_full_query_buffer_is_retried_and_ends_no_turn(env: Environment, buffer: FullBuffer) -> None:
    # The shortest time a model call may have: it ends several times while the session is silent.
    session = await env.start(SessionInput.model_validate({"limits": {"model_timeout": 1}}))
    await session.prompt("hello")
    await session.until(lambda state: state.status == "waiting_retry")
    buffer.is_on = False
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "echo: hello"


async def test_agt_9_an_unresponsive_session_does_not_count_as_a_vendor_failure(
    env: Environment, buffer: FullBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.failures.MAX_FAILURES", 1)
    env.vendor.script = [ModelError("overloaded", "busy", retry_after=SILENCE_SECONDS + 0.2)]
    session = await env.start(SessionInput.model_validate({"limits": {"model_timeout": 1}}))
    await session.prompt("hello")
    await session.until(lambda state: state.status == "waiting_retry")
    buffer.is_on = False
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "echo: hello")


async def test_ops_8_a_stopping_worker_returns_a_call_of_an_unresponsive_session(
    temporal: Client, buffer: FullBuffer
) -> None:
    client = Client(**{**temporal.config(), "interceptors": [buffer]})
    async with environment(client, shutdown_grace=GRACE) as doomed:
        session = await doomed.start()
        await session.prompt("hello")
        async with asyncio.timeout(BOUND):
            await buffer.refused.wait()
        began = time.monotonic()
    assert time.monotonic() - began < GRACE / 2
    buffer.is_on = False
    async with environment(temporal, task_queue=doomed.task_queue) as next_one:
        (turn,) = await next_one.adopt(session.handle).idle(turns=1)
    assert turn.agent_message == "echo: hello"
