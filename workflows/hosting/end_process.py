"""The end of programs that load the SDK."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def run_to_end(main: Callable[[], object]) -> NoReturn:
    """Run `main`, then end the process without the interpreter's own clean-up.

    A thread of the SDK that delivers a result during that clean-up crashes the interpreter (temporalio/sdk-python#300),
    so a clean end would often look like a crash. The exit code is that of a `SystemExit`; 1 after any other exception,
    which is printed; else 0.
    """
    code = _exit_code_of(main)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _exit_code_of(main: Callable[[], object]) -> int:
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
