"""What access adds to the gateway."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access import audit, login
from turnkeeper.features.access.audit import AuditRecorder
from turnkeeper.features.access.credentials import CredentialAuthenticator
from turnkeeper.features.access.session_limits import SessionLimits
from turnkeeper.features.access.tables import ApiKeys, Audit, Logins
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores


class _Access(GatewayFeature):
    routers = (audit.router, login.router)

    def authenticator(self, settings: Settings, stores: Stores, timeouts: Timeouts) -> Authenticator:
        database = stores.database
        return CredentialAuthenticator(settings.auth, ApiKeys(database), Logins(database), timeouts)

    def services(self, services: Services) -> Iterable[object]:
        yield SessionLimits(services.settings, services.reader)
        yield AuditRecorder(Audit(services.stores.database))

    @asynccontextmanager
    async def running(self, app: FastAPI, services: Services) -> AsyncIterator[None]:
        authenticator: Authenticator = app.state.authenticator
        async with authenticator.running() if isinstance(authenticator, CredentialAuthenticator) else nullcontext():
            yield
        await services.get(AuditRecorder).close()


GATEWAY = _Access()
