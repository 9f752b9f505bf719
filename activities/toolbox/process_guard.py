"""Runs a tool server's program, and lets nothing of it outlive the one who asked for it, however that one ends.

Run as a script: `python tether.py <lifeline> <program> <argument> ...`, as the leader of a process group. The
lifeline is one end of a pair of sockets whose other end is held by the client. Its end is the client's end, also by a
`kill -9`, and takes everything in the group with it: first asked, then killed. Likewise nothing is left of a server
that ends by itself; and by our end the client learns of it. The kernel's own request for a signal at the parent's
death (`ops/local/leash.py`) would reach the program alone, which is often a launcher such as npx or uvx, and not the
server that it started.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 2.0
"""Given to a server to end once its input is closed, and again once it is asked by SIGTERM."""

CANNOT_BE_RUN = 127


def main(lifeline: int, command: list[str]) -> None:
    """Run `command` until it or the lifeline ends. Does not return: our own group is killed, with us in it."""
    # A handler, and not SIG_IGN, which the server would inherit: the signal is for the server, we wait for its end.
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
    finally:  # nobody may be left to read it
        os.killpg(0, signal.SIGKILL)


def _release_stdio() -> None:
    """Leave the pipes to the server alone: with a copy held here, nobody would see that it closed its own."""
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
