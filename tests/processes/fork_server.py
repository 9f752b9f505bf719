"""Forks processes that have imported our code already: a start takes milliseconds, not two seconds of a processor.

Run as a script with the descriptor of a listening socket, and the process that it serves: a whole run has one server,
whose test processes start it. It ends when that process does, and so do those that it has forked.

A connection takes one message, a `ForkRequest` as JSON with the process's file descriptors. Back come a line with the
process's id, and a line with its exit code.

Between server and process stands a parent that waits for the process. Nothing here starts a thread before a fork.
"""

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from typing import TypedDict

import httpx2

from tests.certificates import read_certificates_once
from tests.processes import launcher
from tests.processes.terminals import take_terminal
from tests.stores.ready_files import make_files_with_tables, migrated_file
from turnkeeper.ops.local import processes
from turnkeeper.ops.local.die_with_parent import die_with_parent
from turnkeeper.worker import own_build_id

PRELOADED = (
    "alembic.command",
    "anyio._backends._asyncio",
    "encodings.idna",
    "httpcore2",
    "rich.logging",
    "temporalio.worker.workflow_sandbox._in_sandbox",
    "tests.faults.campaign.campaign",
    "tests.faults.doomed_worker",
    "turnkeeper.api.app",
    "turnkeeper.api.http.server",
    "turnkeeper.cli",
    "turnkeeper.clients.terminal.chat",
    "turnkeeper.clients.terminal.interactive.interactive",
    "turnkeeper.clients.terminal.one_shot",
    "turnkeeper.clients.terminal.one_shot",
    "turnkeeper.ops.doctor",
    "turnkeeper.ops.replay_check",
    "turnkeeper.ops.demo.scenario",
    "turnkeeper.ops.local.supervisor",
    "turnkeeper.worker",
)

MAX_REQUEST_BYTES = 200_000
MAX_DESCRIPTORS = 16
FIRST_FREE_DESCRIPTOR = 500


class ForkRequest(TypedDict):
    """A module to run as `python -m` does.

    With `terminal`, standard input becomes the controlling terminal. `descriptors` are the numbers under which it has
    the descriptors that come with the request. In a `group`, which its launcher leads, it dies with the launcher.
    """

    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    terminal: bool
    descriptors: list[int]
    umask: int | None
    group: int | None


def main() -> None:
    """Serve; in each forked process, run what was asked for instead."""
    for module in PRELOADED:
        importlib.import_module(module)
    own_build_id()  # reads all our code, once for all workers
    read_certificates_once()
    httpx2.create_ssl_context()
    make_files_with_tables()
    migrated_file()
    tempfile.tempdir = None  # each process reads TMPDIR itself
    gc.freeze()
    request = serve()
    if request is not None:
        sys.modules.pop(request["module"], None)
        sys.argv = [request["module"], *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def reap(*_: object) -> None:
    """Collect the exit codes of all ended processes, so that their CPU time counts as ours."""
    process = -1
    with suppress(ChildProcessError):
        while process != 0:
            process, _ = os.waitpid(-1, os.WNOHANG)


def serve() -> ForkRequest | None:
    """Fork a process for each connection. Returns its request in the process, `None` in the server at its end."""
    signal.signal(signal.SIGCHLD, reap)
    listener, owner = socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(int(sys.argv[2]))
    server = os.getpid()
    while owner not in select.select([listener, owner], [], [])[0]:
        status, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(owner)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(server, signal.SIGKILL)
            message, descriptors, _, _ = socket.recv_fds(status, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
            return fork_and_wait(json.loads(message), [*descriptors, status.detach()])
        status.close()
    return None


def fork_and_wait(request: ForkRequest, descriptors: list[int]) -> ForkRequest:
    """Return in the new process; its parent reports how it ends, and ends too."""
    *inherited, status = descriptors
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        os.close(status)
        die_with_parent(parent, signal.SIGTERM)
        become(request, inherited)
        return request
    for descriptor in inherited:
        os.close(descriptor)
    with suppress(OSError):  # its launcher may be dead already
        if request["group"]:
            os.setpgid(process, request["group"])
        os.write(status, f"{process}\n".encode())
    if request["group"]:
        ended = os.pidfd_open(process)
        if ended not in select.select([ended, status], [], [])[0]:
            os.kill(process, signal.SIGKILL)
    _, code = os.waitpid(process, 0)
    with suppress(BrokenPipeError):
        os.write(status, f"{os.waitstatus_to_exitcode(code)}\n".encode())
    os._exit(0)


def become(request: ForkRequest, inherited: list[int]) -> None:
    """Adopt the descriptors, environment, folder and umask of the request."""
    if request["terminal"]:
        os.setsid()
    # Out of the way of each other first.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR) for descriptor in inherited]
    for descriptor in inherited:
        os.close(descriptor)
    for descriptor, number in zip(moved, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["terminal"]:
        take_terminal()
    if request["umask"] is not None:
        os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if launcher.FORK_SERVER in os.environ:
        processes.die_with_parent = launcher
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = os.fdopen(0, closefd=False, encoding=encoding)
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding=encoding)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, encoding=encoding, errors="backslashreplace")


if __name__ == "__main__":
    main()
