"""A worker's report that it works, and the health check of its container, which reads it (OPS-5).

Temporal lists workers, but by names that say nothing of their machines. So a worker looks for itself in that list and
reports to a file in its state folder. Its event loop, its connection and its polls must all work for that, and a check
costs neither a connection nor the memory of the SDK.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.private_files import make_private_folder, write_private

if TYPE_CHECKING:
    from temporalio.worker import Worker

REPORT_SECONDS = 5.0
LOOK_SECONDS = 0.5
MAX_AGE_SECONDS = 30.0
"""A worker whose last report is older is not healthy."""

_log = logging.getLogger(__name__)


class WorkerReport(Frozen):
    """The last report of a worker. With several workers in one state folder: of any of them."""

    identity: str
    reported_at: float
    """On the clock of `time.monotonic`, which all processes of a machine share and nobody sets."""
    tool_problems: dict[str, str] = {}
    """Why tool servers have no tools now, by server: for the operator, since a server's last words are part of it."""
    refused_parts: dict[str, list[str]] = {}
    """Parts left out of all requests to a model since its vendor refused them, by model."""

    @staticmethod
    def file(state_dir: Path) -> Path:
        return state_dir / "worker.json"

    def write(self, state_dir: Path) -> None:
        """Replace the last report at once, so that nobody reads half of one. Raises `OSError`."""
        file = self.file(state_dir)
        make_private_folder(state_dir)
        write_private(new := file.with_suffix(".new"), self.model_dump_json())
        new.replace(file)

    @classmethod
    def read(cls, state_dir: Path) -> "WorkerReport | None":
        """Return the last report; `None` if there is none."""
        try:
            return cls.model_validate_json(cls.file(state_dir).read_text())
        except (OSError, ValidationError):
            return None


@asynccontextmanager
async def reporting(
    worker: "Worker",
    settings: Settings,
    *,
    tool_problems: Callable[[], dict[str, str]] = dict,
    refused_parts: Callable[[], dict[str, list[str]]] = dict,
) -> AsyncIterator[None]:
    """Report, while the block runs and the worker polls, that it polls and which of its parts don't work."""
    task = asyncio.create_task(
        _report(worker, settings, lambda: {"tool_problems": tool_problems(), "refused_parts": refused_parts()})
    )
    try:
        yield
    finally:
        await cancel_until_done([task])
        WorkerReport.file(settings.state_dir).unlink(missing_ok=True)


async def _report(worker: "Worker", settings: Settings, troubles: Callable[[], dict[str, Any]]) -> None:
    # Imported here: the health check must not load the SDK.
    from temporalio.service import RPCError

    from turnkeeper.stores.temporal.connection import polling_workers

    identity, is_failing = worker.config()["identity"] or "", False
    while True:
        try:
            if identity in await polling_workers(worker.client, settings.task_queue):
                report = WorkerReport(identity=identity, reported_at=time.monotonic(), **troubles())
                report.write(settings.state_dir)
            is_failing = False
        except (RPCError, OSError) as error:
            if not is_failing:  # once an outage
                _log.warning("The worker can't report that it polls (%s).", type(error).__name__)
            is_failing = True
        reported, until = troubles(), time.monotonic() + REPORT_SECONDS
        while time.monotonic() < until and troubles() == reported:  # noqa: ASYNC110  # a new trouble is reported at once
            await asyncio.sleep(LOOK_SECONDS)


def find_trouble(settings: Settings) -> str | None:
    """Return why the state folder's worker is not healthy; `None` if it is."""
    report = WorkerReport.read(settings.state_dir)
    if report is None:
        return f"No worker has reported to {WorkerReport.file(settings.state_dir)} that it polls."
    age = time.monotonic() - report.reported_at
    if age < 0:
        return f"Worker {report.identity} reported last before this machine was started."
    if age > MAX_AGE_SECONDS:
        return f"Worker {report.identity} reported last {age:.0f} s ago."
    return None
