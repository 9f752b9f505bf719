"""What listing, searching and opening sessions costs beside a bare call of Temporal's visibility (API-1).

Of 1,000 sessions, Temporal has forgotten 300. The gateway runs in its own process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from statistics import median
from time import perf_counter

import httpx
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client

from benchmarks.environment import BOUND, OWN_SESSIONS, bench_environment, interleaved
from benchmarks.results import Row, ms, row
from turnkeeper.api.history.visible_sessions import SESSIONS
from turnkeeper.features.listing.lists import PAGE
from turnkeeper.ops.local.processes import LOOPBACK

COUNT, FORGOTTEN = 1_000, 300
AT_ONCE = 16
SAMPLES = 60

QUICK_DELETION = {"history.transferProcessorUpdateAckInterval": '"1s"'}
"""A closed session is deleted once the server has noted that it was closed, which it does every 30 s otherwise."""

DELETION_SECONDS = 300.0


async def listing() -> list[Row]:
    """Measure a page of the list, a search, and the opening of a forgotten session."""
    async with (
        bench_environment(gateways=1, dynamic_config=QUICK_DELETION) as environment,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{environment.gateway_ports[0]}", timeout=BOUND) as http,
    ):
        await _have_sessions(http, environment.client)
        measured = await interleaved(
            SAMPLES,
            lambda: _seconds(lambda: _visibility_page(environment.client)),
            lambda: _seconds(lambda: _get(http, "/workflow")),
            lambda: _seconds(lambda: _get(http, "/workflow?q=0123")),
            lambda: _seconds(lambda: _get(http, "/workflow/s0123/conversation")),
        )
    floor, *ours = map(median, measured)
    names = ("list", "search", "open a forgotten one")
    return [
        row(f"{name}, of {COUNT:,} sessions", ms(seconds), ms(floor), seconds / floor, at_most=1.5)
        for name, seconds in zip(names, ours, strict=True)
    ]


async def _have_sessions(http: httpx.AsyncClient, client: Client) -> None:
    """Start all sessions, with a turn each, and let Temporal forget the first ones."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def have(number: int) -> None:
        session = _session(number)
        async with slots:
            body = {"id": session, "title": f"Report {number:04}", "model": "offline:", "prompt": "what time is it?"}
            await _post(http, "/workflow", body)
            if number < FORGOTTEN:
                await _post(http, f"/workflow/{session}/end", {})
                await client.get_workflow_handle(session).result()

    await asyncio.gather(*map(have, range(COUNT)))
    await _until_listed(client, COUNT)
    # The server deletes a session once it has noted all events up to its end, and a deletion that waits for this
    # delays the ones after it: the first one alone says that all others are noted.
    await _delete(client, [FORGOTTEN - 1])
    await _until_listed(client, COUNT - 1)
    await _delete(client, range(FORGOTTEN - 1))
    await _until_listed(client, COUNT - FORGOTTEN)


async def _delete(client: Client, numbers: Iterable[int]) -> None:
    for number in numbers:
        execution = WorkflowExecution(workflow_id=_session(number))
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        await client.workflow_service.delete_workflow_execution(request)


async def _until_listed(client: Client, count: int) -> None:
    """Wait until Temporal's visibility store, which is a moment behind, has `count` sessions of ours."""
    async with asyncio.timeout(DELETION_SECONDS):
        while (await client.count_workflows(SESSIONS)).count != count + OWN_SESSIONS:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.5)


def _session(number: int) -> str:
    return f"s{number:04}"


async def _seconds(call: Callable[[], Awaitable[object]]) -> float:
    started_at = perf_counter()
    await call()
    return perf_counter() - started_at


async def _visibility_page(client: Client) -> None:
    request = ListWorkflowExecutionsRequest(namespace=client.namespace, page_size=PAGE, query=SESSIONS)
    await client.workflow_service.list_workflow_executions(request)


async def _get(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    response.raise_for_status()


async def _post(http: httpx.AsyncClient, path: str, body: object) -> None:
    response = await http.post(path, json=body)
    while response.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # a busy machine; clients repeat the request
        response = await http.post(path, json=body)
    if response.status_code != httpx.codes.CONFLICT:  # the refused request has started it
        response.raise_for_status()
