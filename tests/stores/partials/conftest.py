"""The carriers of partial output; Redis is a real server, where it is installed."""

from collections.abc import AsyncIterator, Iterator

import pytest
from temporalio.client import Client

from tests.harness import Environment, environment
from tests.stores.partials.redis_server import RedisServer, find_redis, running
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.partials.in_process import InProcessCarrier


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    program = find_redis()
    if program is None:
        pytest.skip("no Redis is installed: apt-get install redis-server")
    with running(program) as server:
        yield server


@pytest.fixture(params=["heartbeats", "redis", "in process"])
async def carrier(request: pytest.FixtureRequest, temporal: Client) -> AsyncIterator[PartialCarrier]:
    """Each carrier, as the settings choose it."""
    chosen: PartialCarrier = InProcessCarrier()
    if request.param != "in process":
        server = request.getfixturevalue("redis_server") if request.param == "redis" else None
        chosen = carrier_factory(Settings(redis_url=server and server.url))(temporal)
    async with chosen as opened:
        yield opened


@pytest.fixture
async def env(temporal: Client, carrier: PartialCarrier) -> AsyncIterator[Environment]:
    async with environment(temporal, partials=carrier) as env:
        yield env
