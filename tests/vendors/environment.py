"""A worker whose models are vendors on loopback, and the turns of its sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio.client import Client

from tests.harness import DrivenSession, Environment, environment
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.models.ids import split_model
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.testing.vendor_server import VendorServer


@asynccontextmanager
async def vendor_environment(client: Client, wire: VendorServer, **options: Any) -> AsyncIterator[Environment]:
    """Run a worker that calls the vendor behind `wire`; `options` are passed to `environment`."""
    provider = wire.provider()
    providers = ProviderRegistry({split_model(wire.model)[0]: lambda: provider})
    async with environment(client, providers=providers, **options) as env:
        yield env


async def next_turn(session: DrivenSession, text: str, **fields: Any) -> ConversationMessage:
    """Send a prompt, and return its turn once it has ended."""
    turns = (await session.state({"limit": 1})).session.turn_count
    await session.prompt(text=text, **fields)
    state = await session.until(lambda state: state.session.turn_count > turns and state.status == "idle", turns=1)
    return state.messages[-1]
