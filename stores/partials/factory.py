"""Chooses the carrier, which must be the same for all workers and gateways of an installation."""

from collections.abc import Callable

from temporalio.client import Client

from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.heartbeats import HeartbeatCarrier
from turnkeeper.stores.partials.over_sockets import SocketCarrier


def carrier_factory(settings: Settings) -> Callable[[Client], PartialCarrier]:
    """Return a function that creates the configured carrier for a Temporal client.

    Raises:
        SettingsError: `redis_url` is set, but the package `redis` is not installed.
    """
    if settings.partials == "heartbeats":
        return HeartbeatCarrier
    url = settings.redis_url
    if url is None:
        return lambda client: SocketCarrier(
            settings.state_dir, namespace=client.namespace, task_queue=settings.task_queue
        )
    try:
        # Imported here, since the package is optional.
        from turnkeeper.stores.partials.over_redis import RedisCarrier
    except ModuleNotFoundError as error:
        raise SettingsError("redis_url: Redis needs the package redis: install turnkeeper[redis].") from error
    return lambda client: RedisCarrier(url, namespace=client.namespace, task_queue=settings.task_queue)
