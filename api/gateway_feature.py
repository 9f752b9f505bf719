"""What a feature adds to the gateway."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from fastapi import APIRouter, FastAPI

from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.services import Services
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores


class GatewayFeature:
    """The hooks of the gateway. Each one adds nothing, unless a feature overrides it."""

    routers: Sequence[APIRouter] = ()

    def authenticator(self, settings: Settings, stores: Stores, timeouts: Timeouts) -> Authenticator | None:
        """Return what says who sends a request, if this feature does; otherwise everybody is the local admin."""
        return None

    def services(self, services: Services) -> Iterable[object]:
        """Return the feature's own services, which its routes get with `services.get(ItsType)`.

        Features that it needs have added theirs before. One that is a `ChangeObserver` sees what all requests change.
        """
        return ()

    def install(self, app: FastAPI, settings: Settings) -> None:
        """Add to the application what is no route of FastAPI."""

    def running(self, app: FastAPI, services: Services) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while the gateway serves requests."""
        return nullcontext()
