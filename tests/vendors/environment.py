"""A worker whose models are vendors on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio.client import Client

from tests.harness import Environment, environment
from tests.vendors.server import VendorWire
from turnkeeper.activities.providers.registry import ProviderRegistry
from turnkeeper.models.model_name import split_model


@asynccontextmanager
async def vendor_environment(client: Client, wire: VendorWire, **options: Any) -> AsyncIterator[Environment]:
    """Run a worker that asks the vendor behind `wire`; `options` are those of `environment`."""
    provider = wire.provider()
    providers = ProviderRegistry({split_model(wire.model)[0]: lambda: provider})
    async with environment(client, providers=providers, **options) as env:
        yield env
