"""What the MCP server adds to the gateway."""

from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI

from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.mcp.endpoint import McpEndpoint
from turnkeeper.models.settings.settings import Settings


class _Mcp(GatewayFeature):
    def install(self, app: FastAPI, settings: Settings) -> None:
        app.state.mcp = McpEndpoint()
        app.state.mcp.install(app)

    def running(self, app: FastAPI, services: Services) -> AbstractAsyncContextManager[None]:
        endpoint: McpEndpoint = app.state.mcp
        return endpoint.running(services)


GATEWAY = _Mcp()
