"""What the AI SDK's routes add to the gateway."""

from turnkeeper.api.services import GatewayFeature
from turnkeeper.features.ai_sdk.routes import router


class _AiSdk(GatewayFeature):
    routers = (router,)


GATEWAY = _AiSdk()
