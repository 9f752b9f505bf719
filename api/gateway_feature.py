"""What a feature adds to the gateway."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from fastapi import APIRouter, FastAPI

from turnkeeper.api.services import Services
from turnkeeper.models.settings.settings import Settings


class GatewayFeature:
    """The hooks of the gateway. Each one adds nothing, unless a feature overrides it."""

    routers: Sequence[APIRouter] = ()

    def services(self, services: Services) -> Iterable[object]:
        """Return the feature's own services, which its routes get with `services.get(ItsType)`.

        Features that it needs have added theirs before.
        """
        return ()

    def install(self, app: FastAPI, settings: Settings) -> None:
        """Add to the application what is no route of FastAPI."""

    def running(self, app: FastAPI, services: Services) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while the gateway serves requests."""
        return nullcontext()
