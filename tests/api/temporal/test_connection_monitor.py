"""An outage of Temporal is noticed within 3 s, and a server that is only slow is none (API-2, API-3)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.waiting import until
from turnkeeper.api.temporal.watch import LATE_SECONDS, MIN_MISSED_OF_OUTAGE, ConnectionMonitor
from turnkeeper.api.timeouts import Timeouts


def rpc_error(status: RPCStatusCode) -> RPCError:
    return RPCError(status.name, status, b"")


class Server:
    """A client and its server, which answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None
        self.calls = 0
        self.changes: list[bool] = []

    @property
    def workflow_service(self) -> "Server":
        return self

    async def get_system_info(self, *_: object, **__: object) -> None:
        self.calls += 1
        await self.may_answer.wait()
        if self.error:
            raise self.error


@asynccontextmanager
async def monitored(tick: float = 0.01) -> AsyncIterator[tuple[Server, ConnectionMonitor]]:
    server = Server()
    monitor = ConnectionMonitor(server, lambda: server.changes.append(monitor.is_unreachable), Timeouts(tick=tick))  # type: ignore[arg-type]
    monitor.start()
    yield server, monitor
    monitor.stop()


def test_api_2_an_outage_is_noticed_within_three_seconds() -> None:
    assert (1 + MIN_MISSED_OF_OUTAGE) * Timeouts().tick < 3


async def test_api_2_a_late_answer_ends_an_outage() -> None:
    async with monitored() as (server, monitor):
        await until(lambda: monitor.is_unreachable)
        assert not monitor.is_current
        server.may_answer.set()
        await until(lambda: monitor.is_current)
    assert server.changes[:2] == [True, False]


async def test_api_3_answers_to_watches_count_as_signs_of_life() -> None:
    async with monitored() as (server, monitor):
        for _ in range(3 * MIN_MISSED_OF_OUTAGE):
            await until(lambda: monitor._missed)
            monitor.note_answer()
        assert server.calls == 1
    assert server.changes == []


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (rpc_error(RPCStatusCode.UNAVAILABLE), True),
        (RuntimeError("never connected"), True),
        (rpc_error(RPCStatusCode.RESOURCE_EXHAUSTED), False),
        (rpc_error(RPCStatusCode.PERMISSION_DENIED), False),
    ],
)
async def test_api_2_a_server_that_rejects_a_call_counts_as_reachable(error: Exception, is_outage: bool) -> None:
    async with monitored() as (server, _):
        server.error = error
        server.may_answer.set()
        await until(lambda: server.calls > 2 * MIN_MISSED_OF_OUTAGE)
    assert server.changes[:1] == ([True] if is_outage else [])


async def test_api_3_a_gateway_without_watchers_makes_no_calls(temporal: Client) -> None:
    monitor = ConnectionMonitor(temporal, lambda: None, Timeouts())
    monitor.start()
    task = monitor._task
    monitor.stop()
    await until(lambda: task is not None and task.done())
    assert monitor.is_current


async def test_api_2_a_slow_machine_is_not_reported_as_an_outage() -> None:
    async with monitored(tick=0.5) as (server, monitor):
        for _ in range(MIN_MISSED_OF_OUTAGE):
            monitor._note_silence(seconds=0.5 + 2 * LATE_SECONDS)
        assert not monitor.is_unreachable
        for _ in range(3 * MIN_MISSED_OF_OUTAGE):
            monitor._note_silence(seconds=0.5 + 2 * LATE_SECONDS)
        assert server.changes == [True]
