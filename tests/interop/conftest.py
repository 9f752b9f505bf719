"""A gateway that really listens, and clients that others wrote."""

from collections.abc import AsyncIterator, Iterator

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.api.conftest import gateway, served
from tests.harness import TASK_SECONDS, Environment, Tools, Vendor, environment
from tests.interop.ai_chats import Driver, running_driver
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import InProcessCarrier


@pytest.fixture(scope="session", autouse=True)
def _programs_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Node read compiled code from the second start of a program on: each takes half a second of a processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_COMPILE_CACHE", str(tmp_path_factory.mktemp("node")))
        yield


@pytest.fixture(scope="session")
async def driver() -> AsyncIterator[Driver]:
    """Chats of the AI SDK."""
    async with running_driver() as driver:
        yield driver


@pytest.fixture(scope="session")
async def driver_6() -> AsyncIterator[Driver]:
    """Chats of the AI SDK's version before."""
    async with running_driver(6) as driver:
        yield driver


@pytest.fixture(scope="module")
async def shared_env(temporal: Client) -> AsyncIterator[Environment]:
    """One environment for all tests of a file."""
    async with environment(temporal, partials=InProcessCarrier()) as env:
        yield env


@pytest.fixture
def env(shared_env: Environment) -> Iterator[Environment]:
    """The environment, with a new vendor and new tools for each test."""
    yield shared_env
    shared_env.vendor.gate.open()
    shared_env.tools.gate.open()
    vars(shared_env.vendor).update(vars(Vendor()))
    vars(shared_env.tools).update(vars(Tools()))


@pytest.fixture(scope="module")
async def url(temporal: Client, shared_env: Environment) -> AsyncIterator[str]:
    """Where the gateway of the environment listens."""
    settings = Settings(
        task_queue=shared_env.task_queue, state_dir=shared_env.settings.state_dir, task_timeout=TASK_SECONDS
    )
    async with served(temporal, settings, partials=shared_env.partials) as url:
        yield url


@pytest.fixture(scope="module")
async def http(temporal: Client, shared_env: Environment) -> AsyncIterator[AsyncClient]:
    """The environment's gateway in the same process."""
    state_dir = shared_env.settings.state_dir
    async with gateway(temporal, shared_env.task_queue, state_dir, partials=shared_env.partials) as client:
        yield client
