"""The Python client when the gateway's answers are odd or broken, or it is gone for a while: API-8."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from tests.waiting import BOUND, run_other_tasks
from turnkeeper.clients.python.conversation import ConnectionLostEvent, Conversation, Event, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import (
    GatewayError,
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
)
from turnkeeper.models.session.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import ConversationUpdate

SSE = {"content-type": "text/event-stream"}
PAGE = "<html>It works!</html>"


def update(**more: Any) -> ConversationUpdate:
    standing: dict[str, Any] = {"is_processing": False, "current_message_id": None, "last_seen_message_id": ""}
    changes = {"new_messages": [], "updated_messages": [], "reset": False, "has_more": False, "queue_length": 0}
    return ConversationUpdate(**{**standing, **changes, "status": "idle", "revision": 1, **more})


def as_event(content: ConversationUpdate) -> bytes:
    return f"event: update\nid: {content.revision}.\ndata: {content.model_dump_json()}\n\n".encode()


class Broadcast(httpx2.AsyncByteStream):
    """Sends `chunks`, is silent but for keep-alives for some seconds, and is cut off."""

    def __init__(self, *chunks: bytes, alive_seconds: float = 0.0) -> None:
        self._chunks = chunks
        self._alive_seconds = alive_seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        clock = asyncio.get_running_loop().time
        until = clock() + self._alive_seconds
        while clock() < until:
            await run_other_tasks()
            yield b": ping\n\n"
        raise httpx2.ReadError("cut")


def client_of(
    *answers: Callable[[], httpx2.Response], url: str = "http://gateway", patience: float = 0.0
) -> GatewayClient:
    """A client whose requests are answered by `answers`, one after the other, the last one forever."""
    rest = list(answers)

    def answer(_: httpx2.Request) -> httpx2.Response:
        return (rest.pop(0) if len(rest) > 1 else rest[0])()

    return GatewayClient(url, patience=patience, transport=httpx2.MockTransport(answer))


def answers(status: int, **more: Any) -> Callable[[], httpx2.Response]:
    return lambda: httpx2.Response(status, **more)


async def events_of(client: GatewayClient, *, patience: float | None) -> tuple[Sequence[Event], GatewayError | None]:
    """Return the events of a watcher until the session is over, or until the client gives up."""
    seen: list[Event] = []
    async with asyncio.timeout(BOUND), client, aclosing(client.events("s", patience=patience)) as events:
        try:
            async for event in events:
                seen.append(event)
        except GatewayError as error:
            return seen, error
    return seen, None


# ---- watching


async def test_api_8_patience_is_counted_from_the_loss_of_the_connection() -> None:
    """A quiet session is not a lost one: keep-alives have no content, but prove that the connection works."""
    client = client_of(
        lambda: httpx2.Response(200, headers=SSE, stream=Broadcast(as_event(update()), alive_seconds=0.1)),
        lambda: httpx2.Response(200, headers=SSE, content=as_event(update(revision=2, status="ended"))),
    )
    seen, error = await events_of(client, patience=0.05)
    assert error is None
    assert [type(event) for event in seen] == [UpdateEvent, ConnectionLostEvent, UpdateEvent]


async def test_api_8_a_stream_that_keeps_ending_at_once_fails_in_the_end() -> None:
    times: list[float] = []

    def empty() -> httpx2.Response:
        times.append(asyncio.get_running_loop().time())
        return httpx2.Response(200, headers=SSE)

    seen, error = await events_of(client_of(empty), patience=1.0)
    assert isinstance(error, GatewayUnreachableError)
    assert {type(event) for event in seen} == {ConnectionLostEvent}
    assert 2 <= len(times) <= 4  # after 0, 0.2, 0.6 and 1.4 seconds


async def test_api_8_a_server_that_sends_no_events_is_an_error_without_a_retry() -> None:
    client = client_of(lambda: httpx2.Response(200, html=PAGE))
    seen, error = await events_of(client, patience=None)
    assert (seen, type(error)) == ([], GatewayUnreadableError)


async def test_api_8_the_client_waits_while_a_proxy_cannot_reach_the_gateway() -> None:
    client = client_of(
        answers(502, html=PAGE), answers(200, headers=SSE, content=as_event(update(status="ended", revision=2)))
    )
    seen, error = await events_of(client, patience=5.0)
    assert error is None
    assert [type(event) for event in seen] == [ConnectionLostEvent, UpdateEvent]


def test_api_8_an_update_with_an_empty_queue_clears_the_waiting_prompts() -> None:
    copy = Conversation()
    copy.apply(update(queue_length=1))
    copy.apply_queue([QueuedPrompt(id="p2", position=1, text="waits", mode="enqueue", received_at=datetime.now(UTC))])
    copy.apply(update(queue_length=1, revision=2))
    assert [prompt.id for prompt in copy.waiting] == ["p2"]
    copy.apply(update(queue_length=0, revision=3))
    assert copy.waiting == []


# ---- asking


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.describe("s"),
        lambda client: client.ask("s", "hello", wait=1),
        lambda client: client.health(),
    ],
)
async def test_api_8_every_call_to_a_server_that_is_no_gateway_says_so(
    call: Callable[[GatewayClient], Any], status: int
) -> None:
    async with client_of(answers(status, html=PAGE)) as client:
        with pytest.raises(GatewayUnreadableError, match="not a Turnkeeper gateway"):
            await call(client)


LIMITED = {"type": "urn:turnkeeper:problem:rate-limited", "title": "", "status": 429, "detail": "Too many."}
OVER_LIMIT = answers(429, json={**LIMITED, "limit": "rate_limit"}, headers={"retry-after": "1"})


async def test_api_8_a_rate_limited_request_is_sent_again_after_retry_after() -> None:
    started_at = asyncio.get_running_loop().time()
    started = answers(201, json={"workflow_id": "s"})
    async with client_of(OVER_LIMIT, started, patience=5.0) as client:
        assert (await client.start()).workflow_id == "s"  # not repeatable, but nothing was done
    assert asyncio.get_running_loop().time() - started_at >= 1


@pytest.mark.parametrize(
    ("answer", "retry_after"),
    [
        (OVER_LIMIT, 1.0),
        (answers(429, json={**LIMITED, "limit": "max_open_sessions"}, headers={"retry-after": "60"}), 60.0),
        (answers(429, json=LIMITED, headers={"retry-after": "0"}), 0.0),
    ],
)
async def test_api_8_a_rate_limit_that_outlasts_the_patience_is_an_error(
    answer: Callable[[], httpx2.Response], retry_after: float
) -> None:
    async with client_of(answer) as client:
        with pytest.raises(GatewayProblemError) as error:
            await client.start()
    assert (error.value.problem.name, error.value.retry_after) == ("rate-limited", retry_after)


async def test_api_8_a_rate_limited_stream_is_opened_again_after_retry_after() -> None:
    started_at = asyncio.get_running_loop().time()
    ended = answers(200, headers=SSE, content=as_event(update(status="ended", revision=2)))
    seen, error = await events_of(client_of(OVER_LIMIT, ended), patience=5.0)
    assert ([type(event) for event in seen], error) == ([ConnectionLostEvent, UpdateEvent], None)
    assert asyncio.get_running_loop().time() - started_at >= 1


async def test_api_8_a_response_that_cannot_be_decompressed_is_unreadable() -> None:
    class Packed(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"no gzip"

    async with client_of(lambda: httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=Packed())) as client:
        with pytest.raises(GatewayUnreadableError):
            await client.health()


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:99999", "http://127.0.0.1:-1", "http://127.0.0.1:abc", "http://[::1", "http://\u2603.x"),
        *("http://", "ftp://gateway", "127.0.0.1:8080", "gateway", ""),
    ],
)
async def test_api_8_an_invalid_url_raises_a_readable_error(url: str) -> None:
    with pytest.raises(GatewayUnreachableError, match="this is not an http address"):
        GatewayClient(url)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("²", None), ("soon", None), ("-1", None)])
async def test_api_8_a_retry_after_that_is_not_in_seconds_is_ignored(header: str, seconds: float | None) -> None:
    problem = {"type": "urn:turnkeeper:problem:queue-full", "title": "Full", "status": 429, "detail": "Full."}
    headers = {"retry-after": header.encode("latin-1")}
    async with client_of(lambda: httpx2.Response(429, headers=headers, json=problem)) as client:
        with pytest.raises(GatewayProblemError) as full:
            await client.prompt("s", "hello")
    assert full.value.retry_after == seconds
