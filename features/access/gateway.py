"""What access adds to the gateway."""

from turnkeeper.api.gateway_feature import GatewayFeature
from turnkeeper.features.access.audit import routes as audit
from turnkeeper.features.access.auth import login


class _Access(GatewayFeature):
    routers = (audit.router, login.router)


GATEWAY = _Access()
