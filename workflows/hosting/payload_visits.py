"""Spares our workflows the SDK's visits of payloads where they would change nothing (OPS-8, docs/decisions/0057).

Theory of operation. For each activation the SDK walks six times through its messages, in Python, and gives every
payload to the codec and the external storage: a fifth of a worker's CPU time, also where there is neither. It has no
option for that, so its two functions are replaced with ones that return at once for the instances of `EvictingRunner`
whose payloads need no visit. The activation that creates an instance, and all other workers, take the SDK's way.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import temporalio
from temporalio.bridge import worker as sdk
from temporalio.converter import DataConverter
from temporalio.converter._extstore import StorageOperationMetrics

from turnkeeper.workflows.hosting.evicting_runner import EvictableInstance

VISITS = ("decode_activation", "encode_completion")
INSTANCE = "_ca_instance"
"""Where the SDK's converter for an activation has the instance that it is for."""


def spare_needless_visits() -> None:
    """Replace the SDK's functions in this process; safe to repeat.

    Raises:
        RuntimeError: This release of the SDK has no such functions.
    """
    for name in VISITS:
        visit = getattr(sdk, name, None)
        if visit is None:
            raise RuntimeError(f"temporalio {temporalio.__version__} has no {name}: see {__name__}")
        if not isinstance(visit, _SparedVisit):
            setattr(sdk, name, _SparedVisit(visit))


class _SparedVisit:
    def __init__(self, visit: Callable[..., Awaitable[StorageOperationMetrics]]) -> None:
        self._visit = visit

    async def __call__(self, message: object, converter: DataConverter, **options: Any) -> StorageOperationMetrics:
        instance = getattr(converter, INSTANCE, None)
        if isinstance(instance, EvictableInstance) and not instance.needs_visits:
            return StorageOperationMetrics()
        return await self._visit(message, converter, **options)
