"""Takes the place of `ops/local/die_with_parent.py`, so that a `Program` forks our own commands.

Run as that script is. It has the fork server start the command and stands for it: a signal to its process group
reaches the command, too; the command dies with it; and it ends as the command does. Every other program is executed.
It imports only the standard library, and starts in 20 ms.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

FORK_SERVER = "PYTHON_FORK_SERVER"
"""The variable with the server's address: gateways get the interpreter's variables, too."""

OWN_COMMAND = [sys.executable, "-P", "-m", "turnkeeper.cli"]
"""The beginning of what `turnkeeper.ops.local.supervisor.own_command` returns."""


def main(parent: int, umask: str, command: list[str]) -> None:
    """Be `command`, which ends with the process `parent`."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "local"))
    import die_with_parent

    address = os.environ.get(FORK_SERVER)
    if address is None or command[: len(OWN_COMMAND)] != OWN_COMMAND:
        die_with_parent.main(parent, umask, command)
    die_with_parent.prepare(umask)
    status = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status.connect(f"\0{address}")
    send_request(status, command[len(OWN_COMMAND) :])
    process = int(status.recv(100))  # now it is in our group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(process, signal.SIGTERM))
    die_with_parent.die_with_parent(parent, signal.SIGUSR1)
    code = int(status.recv(100))
    if code < 0:
        with suppress(OSError):  # that of SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def send_request(server: socket.socket, arguments: list[str]) -> None:
    """Request a process with our environment, folder, umask and inherited descriptors under the same numbers."""
    umask = os.umask(0)
    os.umask(umask)
    descriptors = [number for number in map(int, os.listdir("/proc/self/fd")) if is_inherited(number)]
    request = {
        "module": OWN_COMMAND[-1],
        "arguments": arguments,
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "terminal": False,
        "descriptors": descriptors,
        "umask": umask,
        "group": os.getpgrp(),
    }
    socket.send_fds(server, [json.dumps(request).encode()], descriptors)


def is_inherited(descriptor: int) -> bool:
    with suppress(OSError):
        return os.get_inheritable(descriptor)
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
