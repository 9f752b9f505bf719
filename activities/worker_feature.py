"""What a feature adds to the worker."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from temporalio.client import Client

from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.model_client import ModelClient
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ModelRequest
from turnkeeper.stores.stores import Stores


@dataclass(frozen=True)
class WorkerParts:
    """What activities are built from."""

    settings: Settings
    client: Client
    stores: Stores
    texts: LargeTexts
    models: ModelClient


class WorkerFeature:
    """The hooks of the worker. Each one adds nothing, unless a feature overrides it."""

    workflows: Sequence[type] = ()
    offline_texts: Mapping[str, Callable[[ModelRequest], str]] = MappingProxyType({})
    """How the offline model answers the feature's own requests, by their system prompt."""

    def tool_servers(self, settings: Settings) -> Sequence[ToolServer]:
        """Return servers of tools that every session may use, besides the built-in one and those of `mcp.json`."""
        return ()

    def running(self, settings: Settings, stores: Stores, tools: Toolbox) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while the worker runs."""
        return nullcontext()

    def activities(self, parts: WorkerParts) -> Sequence[Callable[..., Any]]:
        return ()
