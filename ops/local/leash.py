"""Runs a command that is told to stop when the process that started it dies, however that dies.

Run as a script: `python leash.py <starter's pid> <program> <argument> ...`. It asks Linux for a SIGTERM at the
starter's death and then becomes the program, which keeps the request. The alternative, `preexec_fn`, runs Python
between fork and exec, which can deadlock in a process that has threads, as every Temporal client has. On other
systems nothing is asked for: there the program outlives a starter that was killed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(starter: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Ask Linux for the signal `by` at the death of `starter`, this process's parent; exit if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
        if os.getppid() != starter:
            # It died before the leash was on.
            sys.exit(os.EX_TEMPFAIL)


def main(starter: int, command: list[str]) -> None:
    """Become `command`, on the leash of `starter`."""
    die_with(starter)
    os.execv(command[0], command)  # noqa: S606 - no shell, and the command is ours


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
