"""Model calls without a session: the activity `call_model`, run as Temporal runs it, but without its pauses."""

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any, cast

from temporalio.testing import ActivityEnvironment

from tests.waiting import BOUND
from turnkeeper.activities.call_model import IndexNotes, ModelActivities
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.list_prices import ListPrices
from turnkeeper.activities.model_client import REQUESTS, CacheKey, ModelClient
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.activities.tools import QuickReader
from turnkeeper.models.context.model_view import digest_of
from turnkeeper.models.ids import split_model
from turnkeeper.models.transcript.model_call import (
    ModelCall,
    ModelCallOutcome,
    ModelMessage,
    ModelRequest,
    RequestHead,
    ToolSpec,
)
from turnkeeper.stores.partials.factory import InProcessCarrier
from turnkeeper.testing.vendor_server import VendorServer

PROMPT = "look it up"
REQUEST = ModelRequest(
    head=RequestHead(tools=[ToolSpec(name="look", effect="read", built_in=True)]),
    messages=[ModelMessage(role="user", content=PROMPT)],
)
MAX_ATTEMPTS = 20
MAX_WAIT = 5.0
"""Seconds of a wait that is skipped; a longer one is an outcome."""


class ModelAttempts:
    """Asks one vendor by its provider, which stays the same over all calls."""

    def __init__(self, wire: VendorServer, *, silence_timeout: float = BOUND) -> None:
        self.wire = wire
        provider = wire.provider(silence_timeout=silence_timeout)
        texts = LargeTexts(cast("Any", None))
        providers = ProviderRegistry({split_model(wire.model)[0]: lambda: provider})
        models = ModelClient(providers, cast("Any", None), texts, ListPrices())
        self._activities = ModelActivities(
            models, texts, InProcessCarrier(), IndexNotes(cast("Any", None)), QuickReader(cast("Any", None), texts)
        )
        self._call = ModelCall(
            turn=1, step=1, request=1, model=wire.model, digest=digest_of(REQUEST), repeats_empty=True
        )

    async def outcome(self) -> ModelCallOutcome:
        """Return the outcome after as many short waits as it takes, as the workflow does. Raises what ends its turn."""
        call = self._call
        for waits in range(1, MAX_ATTEMPTS + 1):
            outcome = await self.attempt(call=call)
            if outcome.wait_seconds is None or outcome.wait_seconds > MAX_WAIT:
                return outcome
            call = call.model_copy(update={"round": waits, "lasting_failures": outcome.lasting_failures})
        raise AssertionError(f"{MAX_ATTEMPTS} attempts")

    def environment(
        self, number: int = 1, *, details: tuple[Any, ...] = (), seconds: float = BOUND
    ) -> ActivityEnvironment:
        """Return the environment of an attempt that may take `seconds`."""
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(
            environment.info,
            attempt=number,
            heartbeat_details=list(details),
            start_to_close_timeout=timedelta(seconds=seconds),
            schedule_to_close_timeout=None,
        )
        return environment

    async def attempt(
        self, environment: ActivityEnvironment | None = None, *, call: ModelCall | None = None
    ) -> ModelCallOutcome:
        """Make one attempt. Raises what Temporal gets, to be retried or not."""
        environment = environment or self.environment()
        REQUESTS.put(CacheKey(environment.info.workflow_run_id or "", 1, self._call.digest), REQUEST, size=0)
        async with asyncio.timeout(BOUND):
            return await environment.run(self._activities.call_model, call or self._call)
