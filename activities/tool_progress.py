"""Publishing how far a running tool call is, as its server reports it (AGT-7).

A server may send thousands of reports per second, with whatever numbers and texts. So only the newest one is kept, and
made into a bounded, legible record when it is due: at most every `MIN_PAUSE_SECONDS`, and again every `REPEAT_SECONDS`,
so that no carrier has to store it for those who come late. It is never recorded, and the call's result replaces it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from math import isfinite

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.legible import legible_line, one_line
from turnkeeper.models.transcript.partial_output import CallProgress
from turnkeeper.stores.partials.carrier import PartialCarrier

MIN_PAUSE_SECONDS = 0.25
REPEAT_SECONDS = 1.0

MAX_MESSAGE_CHARS = 200

ProgressListener = Callable[[float, float | None, str | None], None]
"""Accepts a report: `progress`, `total` and `message`, as MCP defines them."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def publishing_progress(
    carrier: PartialCarrier, workflow_id: WorkflowId, call_id: str
) -> AsyncIterator[ProgressListener]:
    """Yield the listener of a call's reports, and publish them inside the block."""
    newest: tuple[float, float | None, str | None] = (0.0, None, None)
    has_news = asyncio.Event()

    def listen(progress: float, total: float | None, message: str | None) -> None:
        nonlocal newest
        newest = (progress, total, message)
        has_news.set()

    async def publish() -> None:
        await has_news.wait()
        try:
            while True:
                has_news.clear()
                if carrier.is_followed(workflow_id):
                    carrier.publish(workflow_id, call_progress(call_id, *newest))
                await asyncio.sleep(max(MIN_PAUSE_SECONDS, carrier.min_pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_SECONDS):
                        await has_news.wait()
        except Exception as error:  # noqa: BLE001  # a failure to publish must not fail the call
            # Only the error's name: messages can contain what the server wrote.
            _log.warning("the progress of a tool is not published (%s)", type(error).__name__)

    publishing = asyncio.create_task(publish())  # in the activity's context, which heartbeats need
    try:
        yield listen
    finally:
        publishing.cancel()


def call_progress(call_id: str, progress: float, total: float | None, message: str | None) -> CallProgress:
    r"""Return a server's report as a record that is safe to show.

    >>> call_progress("1.1.0", 3, 12, "Reading\n pages").text, call_progress("1.1.0", 3, 0, None).text
    ('3 of 12 (25 %) · Reading pages', '3')
    >>> call_progress("1.1.0", 0.5, 1, None).text, call_progress("1.1.0", float("nan"), 9e99, "\u202e").text
    ('50 %', '0 of 9e+99 (0 %) · <U+202E>')
    """
    progress = progress if isfinite(progress) else 0.0
    total = total if total is not None and isfinite(total) and total > 0 else None
    message = one_line(legible_line(" ".join((message or "")[: 5 * MAX_MESSAGE_CHARS].split())), MAX_MESSAGE_CHARS)
    numbers = f"{round(progress, 2):,.12g}"
    if total is not None:
        percent = f"{int(100 * min(1.0, max(0.0, progress / total)))} %"
        numbers = percent if total in (1, 100) else f"{numbers} of {round(total, 2):,.12g} ({percent})"
    elif message:
        numbers = ""  # it has no unit
    text = " · ".join(filter(None, (numbers, message)))
    return CallProgress(call_id=call_id, progress=progress, total=total, message=message, text=text)
