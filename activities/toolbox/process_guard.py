"""Runs a tool server's program, and ends everything that it started when the client ends, even by `kill -9`.

Run as a script, as the leader of a process group: `python process_guard.py <lifeline> <program> <argument> ...`. The
lifeline is one end of a socket pair whose other end the client has open. When the client closes it or dies, everything
in the group is terminated, then killed. The same happens when the server ends by itself, and the client notices the
end of this process. A signal from the kernel at the parent's death (`ops/local/leash.py`) would reach only the program,
which is often a launcher such as npx or uvx, and not the server that it started.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 2.0
"""Time for a server to end after its input is closed, and again after SIGTERM."""

CANNOT_BE_RUN = 127


def main(lifeline: int, command: list[str]) -> None:
    """Run `command` until it or the lifeline ends. Does not return: it kills its own process group."""
    # A handler and not SIG_IGN, which the server would inherit. SIGTERM is for the server; we wait for its end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server = subprocess.Popen(command)  # noqa: S603  # no shell, and the operator's own command
    except (OSError, ValueError) as error:
        print(f"{command[0]!r} cannot be run: {getattr(error, 'strerror', None) or error}", file=sys.stderr)  # noqa: T201  # stderr is the server's log
        sys.exit(CANNOT_BE_RUN)
    _release_stdio()
    threading.Thread(target=_end_with_client, args=(lifeline,), daemon=True).start()
    code = server.wait()
    try:
        print(f"[ended with {code}]", file=sys.stderr, flush=True)  # noqa: T201  # stderr is the server's log
    finally:  # the print fails if nobody reads the log
        os.killpg(0, signal.SIGKILL)


def _release_stdio() -> None:
    """Close our copies of the pipes, so that the client notices when the server closes its own."""
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
