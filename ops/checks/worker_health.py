"""Health check of a worker's container: exit code 0 if Temporal can be reached and knows a worker that polls.

Identities of workers are short and name no machine, so with several workers this is about all of them.
"""

import asyncio
import logging
import sys

from temporalio.service import RPCError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.settings.settings import Settings, load_settings
from turnkeeper.workflows.hosting.connection import connect, polling_workers

CHECK_SECONDS = 15.0


async def is_polled(settings: Settings) -> bool:
    """Return whether a worker polls the task queue. Raises `TemporalAccessError` and `RPCError`."""
    client = await connect(settings)
    return bool(await polling_workers(client, settings.task_queue))


def main() -> int:
    """Return the exit code."""
    logging.basicConfig(handlers=[logging.NullHandler()])

    async def check() -> bool:
        async with asyncio.timeout(CHECK_SECONDS):
            return await is_polled(load_settings())

    try:
        return 0 if asyncio.run(check()) else 1
    except (TurnkeeperError, RPCError, OSError):
        return 1


if __name__ == "__main__":
    sys.exit(main())
