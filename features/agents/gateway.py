"""What agents add to the gateway: which there are, and what sessions are started as."""

from collections.abc import Iterable

from turnkeeper.api.gateway_feature import GatewayFeature
from turnkeeper.api.services import Services
from turnkeeper.features.agents.directory import AgentDirectory
from turnkeeper.features.agents.routes import router
from turnkeeper.features.agents.versions import AgentVersions


class _Agents(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        yield AgentDirectory(services.settings, AgentVersions(services.stores.database), services.timeouts)


GATEWAY = _Agents()
