"""Runs a tool server's program and ends its whole process group when the client ends, even by `kill -9`.

Run as a script: `python process_guard.py <lifeline> <program> <argument> ...`, as the leader of a process group. The
lifeline is one end of a socket pair; the client holds the other. When the client dies its end closes, and the guard
ends every process of the group: first with SIGTERM, then with SIGKILL. The group is also killed when the server ends
by itself, and the guard's end tells the client. A signal at the parent's death (`ops/local/die_with_parent.py`) would
reach only the program, which is often a launcher such as npx or uvx, and not the server that it started.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 2.0
"""How long a server may take to end after its input closes, and again after SIGTERM."""

CANNOT_BE_RUN = 127


def main(lifeline: int, command: list[str]) -> None:
    """Run `command` until it or the lifeline ends. Never returns: it kills its own process group."""
    # A handler, since the server would inherit SIG_IGN: the signal is for the server, and we wait for its end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server = subprocess.Popen(command)  # noqa: S603  # no shell, and the operator's own command
    except (OSError, ValueError) as error:
        print(f"{command[0]!r} cannot be run: {getattr(error, 'strerror', None) or error}", file=sys.stderr)  # noqa: T201  # stderr is the server's log
        sys.exit(CANNOT_BE_RUN)
    _close_input_and_output()
    threading.Thread(target=_end_with_client, args=(lifeline,), daemon=True).start()
    code = server.wait()
    try:
        print(f"[ended with {code}]", file=sys.stderr, flush=True)  # noqa: T201  # stderr is the server's log
    finally:  # the reader of stderr may be dead
        os.killpg(0, signal.SIGKILL)


def _close_input_and_output() -> None:
    """Leave the pipes to the server: with copies open here, nobody would notice that it closed its own."""
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)


def _end_with_client(lifeline: int) -> None:
    os.read(lifeline, 1)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
