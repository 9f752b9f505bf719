"""Runs a command that gets a signal when the process that started it dies, even by `kill -9`.

Run as a script: `python die_with_parent.py <parent's pid> <umask> <program> <argument> ...`. It begins a process group,
sets the umask (octal), asks Linux for a SIGTERM at the parent's death, then becomes the program, which keeps all that.
The alternative, `preexec_fn`, runs Python between fork and exec and can deadlock in a process with threads, as every
Temporal client has. On other systems the program outlives a parent that was killed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGTERM) -> None:
    """Ask Linux for `death_signal` when the process `parent`, our parent, dies; exit if it is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            # It died before the request was made.
            sys.exit(os.EX_TEMPFAIL)


def prepare(umask: str) -> None:
    """Begin a process group and set the umask."""
    os.setpgid(0, 0)
    os.umask(int(umask, 8))


def main(parent: int, umask: str, command: list[str]) -> None:
    """Become `command`, which ends with `parent`."""
    prepare(umask)
    die_with_parent(parent)
    os.execv(command[0], command)  # noqa: S606 - no shell, and the command is ours


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
