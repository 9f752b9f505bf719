"""Starting, running and ending our processes.

A start pauses the garbage collector. A process whose event loop is blocked ends itself, so that its supervisor starts
it again: a call that never returns on the loop would otherwise leave a worker that takes tasks and finishes none, or a
gateway that answers nobody, until a person notices. And a process that loads the SDK ends without the interpreter's
clean-up.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause garbage collection inside the block, and exempt the objects made in it for good.

    Modules stay in memory, so a collection that visits their objects would only cost time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_fast(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop's event loop, as uvicorn runs the gateway; on asyncio's where there is none (Windows).

    A streamed chunk costs a worker a sixth less CPU time there.
    """
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)


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


EXTRAS = {"api": "server", "demo": "all", "doctor": "all", "replay-check": "worker", "up": "all", "worker": "worker"}
"""What the commands need that are more than a client; all others need `cli`."""


@contextmanager
def missing_extra_explained() -> Iterator[None]:
    """Exit with a sentence in place of a traceback if a package of an extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, command = (error.name or "").partition(".")[0], next(iter(sys.argv[1:]), "")
        if package in ("", "turnkeeper"):
            raise
        name = f"turnkeeper {command}".strip()
        sys.exit(f"{name!r} needs the package {package}: pip install 'turnkeeper[{EXTRAS.get(command, 'cli')}]'")


def run_to_end(main: Callable[[], object]) -> NoReturn:
    """Run `main`, then end the process without the interpreter's own clean-up.

    A thread of the SDK that delivers a result during that clean-up crashes the interpreter (temporalio/sdk-python#300),
    so a clean end would often look like a crash. The exit code is that of a `SystemExit`; 1 after any other exception,
    which is printed; else 0.
    """
    code = _run_for_exit_code(main)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _run_for_exit_code(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  # the interpreter would print it and end, too
        traceback.print_exc()
        return 1
    return 0
