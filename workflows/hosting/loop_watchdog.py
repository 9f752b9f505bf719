"""Ends a process whose event loop stands still, so that its supervisor starts it again.

A call that never returns on the loop would otherwise leave a worker that takes tasks and finishes none, or a gateway
that answers nobody, until a person notices.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STALL_SECONDS = 60.0
"""Blocking calls of ours take less than a second, and a few seconds on a busy machine."""

CHECKS = 60
"""Checks in that time. Missed checks are counted, not seconds: a suspended process has not stood still."""

EXIT_CODE = 70
"""EX_SOFTWARE of BSD's sysexits: an internal error."""


@contextmanager
def loop_watchdog(seconds: float = STALL_SECONDS) -> Iterator[None]:
    """End the process with `EXIT_CODE` if the running loop stands still for `seconds` inside the block.

    What each thread was doing is written to stderr first. With a debugger attached, nothing is watched.
    """
    if sys.gettrace() is not None:
        yield
        return
    is_over = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(asyncio.get_running_loop(), is_over, seconds), name="loop watchdog", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(loop: asyncio.AbstractEventLoop, is_over: threading.Event, seconds: float) -> None:
    has_run = threading.Event()
    has_run.set()
    missed = 0
    while not is_over.wait(seconds / CHECKS):
        if has_run.is_set():
            missed = 0
            has_run.clear()
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(has_run.set)
        elif (missed := missed + 1) >= CHECKS:
            _end_process(seconds)


def _end_process(seconds: float) -> None:
    # Written without `logging`, whose locks may be what the loop waits for.
    os.write(sys.stderr.fileno(), f"The event loop stood still for {seconds:g} s, so the process ends.\n".encode())
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_CODE)
