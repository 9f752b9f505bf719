"""One worker and one gateway for all tests of the clients, with a vendor and tools of each test's own."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from temporalio.client import Client

from tests.api.conftest import served
from tests.harness import TASK_SECONDS, Environment, Tools, Vendor, environment
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.tools import ProgressListener
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation, ToolList
from turnkeeper.stores.partials.factory import InProcessCarrier

TEMPORAL_UI = "http://temporal.example"


class Vendors:
    """Leads each session to the vendor and the tools of the test that started it: one worker serves all tests."""

    def __init__(self) -> None:
        self.newest: Environment | None = None
        self._newest_since = datetime.max.replace(tzinfo=UTC)
        self._by_session: dict[str, Environment] = {}

    def begin_test(self, env: Environment) -> None:
        """Give the sessions that are started from now on the vendor and the tools of `env`."""
        self.newest, self._newest_since = env, datetime.now(UTC)

    def resolve(self, model: str) -> tuple[Provider, str]:
        return self, model

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        env = await self._environment_of(info.session_id)
        async with aclosing(env.vendor.stream(name, request, info)) as events:
            async for event in events:
                yield event

    async def list_tools(self) -> ToolList:
        assert self.newest is not None
        return await self.newest.tools.list_tools()

    async def call(self, invocation: ToolInvocation, *, on_progress: ProgressListener | None = None) -> ToolResult:
        env = await self._environment_of(invocation.session_id)
        return await env.tools.call(invocation, on_progress=on_progress)

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        env = await self._environment_of(invocation.session_id)
        return await env.tools.preview(invocation, max_bytes=max_bytes)

    async def _environment_of(self, session: str) -> Environment:
        """Return the environment of the session's test. Sessions of earlier tests get no answers."""
        if session not in self._by_session:
            assert self.newest is not None
            started = (await self.newest.client.get_workflow_handle(session).describe()).start_time
            is_new = started >= self._newest_since
            self._by_session[session] = self.newest if is_new else replace(self.newest, vendor=Vendor(), tools=Tools())
        return self._by_session[session]


@pytest.fixture(scope="session")
def vendors() -> Vendors:
    return Vendors()


@pytest.fixture(scope="session")
async def shared_worker(temporal: Client, vendors: Vendors) -> AsyncIterator[Environment]:
    carrier = InProcessCarrier()
    async with environment(temporal, providers=vendors, toolbox=vendors, partials=carrier, model="offline:") as env:
        yield env


@pytest.fixture
async def env(shared_worker: Environment, vendors: Vendors) -> Environment:
    """The worker of all tests of the clients, with a vendor and tools of this test's own."""
    env = replace(shared_worker, vendor=Vendor(), tools=Tools(), sessions=[])
    vendors.begin_test(env)
    return env


def gateway_settings(env: Environment) -> Settings:
    """The settings of a gateway in front of the worker."""
    return env.settings.model_copy(update={"task_timeout": TASK_SECONDS, "temporal_ui_url": TEMPORAL_UI})


@pytest.fixture(scope="session")
async def shared_url(temporal: Client, shared_worker: Environment, timeouts: Timeouts) -> AsyncIterator[str]:
    """Where the gateway listens, with a worker behind it in the same process."""
    settings = gateway_settings(shared_worker)
    async with served(temporal, settings, partials=shared_worker.partials, timeouts=timeouts) as url:
        yield url


@pytest.fixture
async def url(shared_url: str, env: Environment) -> str:
    return shared_url
