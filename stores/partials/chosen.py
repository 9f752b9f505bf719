"""Which carrier an installation uses: all its workers and gateways the same."""

from collections.abc import Callable

from temporalio.client import Client

from models.settings import Settings
from stores.partials.carrier import PartialCarrier
from stores.partials.heartbeats import HeartbeatCarrier


def chosen_carrier(settings: Settings) -> Callable[[Client], PartialCarrier]:
    """Return what makes the carrier that the settings name, of a client."""
    return HeartbeatCarrier
