"""The carriers of partial output; Redis is a real server, where it is installed."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.harness import Environment, environment
from tests.stores.partials.redis_server import RedisServer, find_redis, running
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import InProcessCarrier, carrier_factory


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    program = find_redis()
    if program is None:
        pytest.skip("no Redis is installed: apt-get install redis-server")
    with running(program) as server:
        yield server


CARRIERS = ["unix sockets", "loopback", "heartbeats", "redis"]


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for a socket
        yield Path(folder)


def settings_of(kind: str, state_dir: Path, request: pytest.FixtureRequest) -> Settings:
    """Return the settings that choose one of `CARRIERS`."""
    return Settings(
        state_dir=state_dir / ("n" * 100) if kind == "loopback" else state_dir,  # no socket has such a long path
        redis_url=request.getfixturevalue("redis_server").url if kind == "redis" else None,
        partials="heartbeats" if kind == "heartbeats" else "auto",
    )


@pytest.fixture(params=[*CARRIERS, "in process"])
async def carrier(request: pytest.FixtureRequest, temporal: Client, state_dir: Path) -> AsyncIterator[PartialCarrier]:
    """Each carrier, as the settings choose it."""
    chosen: PartialCarrier = InProcessCarrier()
    if request.param != "in process":
        chosen = carrier_factory(settings_of(request.param, state_dir, request))(temporal)
    async with chosen as opened:
        yield opened


@pytest.fixture
async def env(temporal: Client, carrier: PartialCarrier) -> AsyncIterator[Environment]:
    async with environment(temporal, partials=carrier) as env:
        yield env
