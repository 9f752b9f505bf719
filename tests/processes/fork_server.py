"""Forks processes that have imported our code already: a start takes milliseconds, not two seconds of a processor.

Run as a script with a socket as its standard input. Each message is a `ForkRequest` as JSON; its file descriptors are
the process's standard streams and one for its status: a line with its id, and a line with its exit code. The server
ends when the other end of its socket is closed, and so do the processes.

Between server and process stands a parent that waits for the process. Nothing here starts a thread before a fork.
"""

import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import termios
from typing import TypedDict

import httpx2

from tests.certificates import read_certificates_once
from turnkeeper.ops.local.die_with_parent import die_with_parent

PRELOADED = (
    "anyio._backends._asyncio",
    "httpcore2",
    "tests.faults.campaign.campaign",
    "tests.faults.doomed_worker",
    "turnkeeper.api.app",
    "turnkeeper.api.http.server",
    "turnkeeper.cli",
    "turnkeeper.clients.terminal.chat",
    "turnkeeper.clients.terminal.interactive.interactive",
    "turnkeeper.clients.terminal.json_lines",
    "turnkeeper.clients.terminal.one_shot",
    "turnkeeper.ops.checks.doctor",
    "turnkeeper.ops.checks.replay_check",
    "turnkeeper.ops.demo.run",
    "turnkeeper.ops.local.supervisor",
    "turnkeeper.worker",
)

MAX_REQUEST_BYTES = 200_000


class ForkRequest(TypedDict):
    """A module to run as `python -m` does; with `terminal`, standard input becomes the controlling terminal."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    terminal: bool


def main() -> None:
    """Serve; in each forked process, run what was asked for instead."""
    for module in PRELOADED:
        importlib.import_module(module)
    read_certificates_once()
    httpx2.create_ssl_context()
    gc.freeze()
    request = serve()
    if request is not None:
        sys.modules.pop(request["module"], None)
        sys.argv = [request["module"], *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def serve() -> ForkRequest | None:
    """Fork a process for each message. Returns its request in the process itself, `None` in the server at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=os.dup(0))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not message:
            return None
        server = os.getpid()
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(server, signal.SIGKILL)
            return fork_and_wait(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def fork_and_wait(request: ForkRequest, descriptors: list[int]) -> ForkRequest:
    """Return in the new process; its parent reports how it ends, and ends too."""
    *streams, status = descriptors
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        os.close(status)
        die_with_parent(parent, signal.SIGTERM)
        become(request, streams)
        return request
    for stream in streams:
        os.close(stream)
    os.write(status, f"{process}\n".encode())
    _, ended = os.waitpid(process, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def become(request: ForkRequest, streams: list[int]) -> None:
    """Take the streams, environment and folder of the request."""
    if request["terminal"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = os.fdopen(0, closefd=False, encoding=encoding)
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding=encoding)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, encoding=encoding, errors="backslashreplace")


if __name__ == "__main__":
    main()
