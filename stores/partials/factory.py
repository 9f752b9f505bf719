"""Which carrier an installation uses: all its workers and gateways the same."""

from collections.abc import Callable

from temporalio.client import Client

from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.heartbeats import HeartbeatCarrier


def carrier_factory(settings: Settings) -> Callable[[Client], PartialCarrier]:
    """Return what makes the carrier that the settings name, given a client of Temporal.

    Raises:
        SettingsError: `redis_url` is set, and the package for it is not installed.
    """
    url = settings.redis_url
    if url is None:
        return HeartbeatCarrier
    try:
        # Here and not above: only who sets it needs the package.
        from turnkeeper.stores.partials.over_redis import RedisCarrier
    except ModuleNotFoundError as error:
        raise SettingsError("redis_url: Redis needs the package redis: install turnkeeper[redis].") from error
    return lambda client: RedisCarrier(url, namespace=client.namespace, task_queue=settings.task_queue)
