"""A gateway over a real server and a real worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from starlette.requests import HTTPConnection
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    StartWorkflowUpdateInput,
)

from tests.api.long_chats import archived_chat
from tests.harness import TASK_SECONDS, DrivenSession, Environment, environment, patient, product
from tests.waiting import until
from turnkeeper.api.app import create_app
from turnkeeper.api.callers import Caller, Identity
from turnkeeper.api.http.server import DEFAULT_BOUNDS, ConnectionBounds, GatewayServer
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import InProcessCarrier

UNLIMITED: dict[str, Any] = {"rate_limit": 1_000_000, "prompt_rate_limit": 1_000_000}
"""Settings for tests that send faster than people do."""


def identify_as(app: FastAPI, caller: Caller) -> None:
    """Set `caller` as the caller of every request, in place of the authentication."""

    async def identify(request: HTTPConnection) -> Identity:
        return Identity(caller)

    app.state.authenticator.identify = identify


@asynccontextmanager
async def gateway(
    client: Client | None,
    task_queue: str,
    state_dir: Path,
    *,
    partials: PartialCarrier | None = None,
    caller: Caller | None = None,
    task_seconds: float = TASK_SECONDS,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[AsyncClient]:
    """With `caller`, all requests come from that one. Without `timeouts` it waits without a limit."""
    settings = Settings(
        task_queue=task_queue, state_dir=state_dir, task_timeout=task_seconds, **UNLIMITED if caller else {}
    )
    app = create_app(settings, client=client, partials=partials, timeouts=timeouts or patient())
    if caller:
        identify_as(app, caller)
    async with app.router.lifespan_context(app):
        transport = ASGITransport(app=app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://localhost", timeout=70) as http:
            yield http


class LoopbackServer(GatewayServer):
    """In the test's own loop; signals stay pytest's."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Do what SIGTERM does."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(
    client: Client | None,
    settings: Settings,
    *,
    partials: PartialCarrier | None = None,
    port: int = 0,
    bounds: ConnectionBounds = DEFAULT_BOUNDS,
    caller: Caller | None = None,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[str]:
    """A gateway that listens on a port; yields its URL. Tests see the bytes on the wire as they arrive."""
    app = create_app(settings, client=client, partials=partials, timeouts=timeouts or patient())
    if caller:
        identify_as(app, caller)
    async with serving(app, port=port, bounds=bounds) as server:
        yield server.url


@asynccontextmanager
async def serving(
    app: FastAPI, *, port: int = 0, bounds: ConnectionBounds = DEFAULT_BOUNDS
) -> AsyncIterator[LoopbackServer]:
    """A gateway that listens on a port. It stops at the end of the block, or when the test calls `stop`."""
    server = LoopbackServer(app, host="127.0.0.1", port=port, bounds=bounds)
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or serving.done())
        assert not serving.done(), "the server has ended"
        yield server
    finally:
        server.stop()
        await serving


class SessionRequests(Interceptor):
    """Records the queries and updates that sessions get, by name. Each costs a worker something."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.updates: list[str] = []
        self.anything = asyncio.Event()

    def clear(self) -> None:
        """Forget all recorded requests."""
        self.queries.clear()
        self.updates.clear()
        self.anything.clear()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _RequestRecorder(next, self)


class _RequestRecorder(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, requests: SessionRequests) -> None:
        super().__init__(next)
        self._requests = requests

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        self._requests.queries.append(input.query)
        self._requests.anything.set()
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        self._requests.updates.append(input.update)
        self._requests.anything.set()
        return await super().start_workflow_update(input)


@pytest.fixture
def session_requests() -> SessionRequests:
    """The queries and updates that the gateway at `url` sends to sessions."""
    return SessionRequests()


@pytest.fixture
async def url(
    temporal: Client, env: Environment, session_requests: SessionRequests, timeouts: Timeouts
) -> AsyncIterator[str]:
    """The URL of a gateway and a worker that share an archive."""
    settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS)
    client = Client(**{**temporal.config(), "interceptors": [session_requests]})
    async with served(client, settings, partials=env.partials, timeouts=timeouts) as url:
        yield url


@pytest.fixture
async def env(temporal: Client) -> AsyncIterator[Environment]:
    async with environment(temporal, partials=InProcessCarrier()) as env:
        yield env


@pytest.fixture
async def http(temporal: Client, env: Environment, timeouts: Timeouts) -> AsyncIterator[AsyncClient]:
    """A client of a gateway and a worker that share an archive, all in this process."""
    async with gateway(
        temporal, env.task_queue, env.settings.state_dir, partials=env.partials, timeouts=timeouts
    ) as client:
        yield client


@pytest.fixture(scope="module")
async def shared_env(temporal: Client) -> AsyncIterator[Environment]:
    """An environment for all tests of a file that clean up: no script, closed gate or broken archive remains."""
    async with environment(temporal, partials=InProcessCarrier()) as env:
        yield env


@pytest.fixture(scope="module")
async def shared_http(temporal: Client, shared_env: Environment, timeouts: Timeouts) -> AsyncIterator[AsyncClient]:
    """The gateway of `shared_env`."""
    settings, partials = shared_env.settings, shared_env.partials
    queue = shared_env.task_queue
    async with gateway(temporal, queue, settings.state_dir, partials=partials, timeouts=timeouts) as client:
        yield client


@pytest.fixture(scope="module")
async def unchanged(shared_env: Environment) -> DrivenSession:
    """A session that no test of the file changes."""
    return await shared_env.start()


@pytest.fixture(scope="module")
async def long_chat(shared_env: Environment) -> DrivenSession:
    """A session of 15 turns, the first of which are in the archive; no test of the file changes it."""
    return await archived_chat(shared_env, 15)


@pytest.fixture(scope="session")
def api_document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The OpenAPI document, as JSON; tests don't change it. Generating it takes a third of a second."""
    app = create_app(Settings(state_dir=tmp_path_factory.mktemp("state")))
    return json.loads(json.dumps(app.openapi()))


@pytest.fixture
async def http_alone(
    temporal: Client, tmp_path: Path, timeouts: Timeouts, product_bounds: None
) -> AsyncIterator[AsyncClient]:
    """The gateway, with no worker anywhere."""
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path, timeouts=timeouts) as client:
        yield client


@pytest.fixture
async def http_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """The gateway, with no Temporal to reach."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with gateway(None, "q", tmp_path, timeouts=product()) as client:
        yield client
