"""Our own commands and test programs in processes of their own, forked from one that has imported them."""

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from tests.processes import launcher
from tests.processes.fork_server import ForkRequest
from turnkeeper.ops.local import processes

ROOT = Path(__file__).parents[2]


class ForkedProcess:
    """A process with the interface of `asyncio.subprocess.Process`."""

    def __init__(
        self,
        pid: int,
        status: asyncio.StreamReader,
        stdin: asyncio.StreamWriter | None,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._end = asyncio.create_task(self._read_end(status))

    async def _read_end(self, status: asyncio.StreamReader) -> int:
        self.returncode = int(await status.readline())
        return self.returncode

    async def wait(self) -> int:
        """Return the exit code; that of a process killed by a signal is the signal's number, negated."""
        return await asyncio.shield(self._end)

    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]:
        """Write `input`; return standard output and standard error once the process has ended."""
        if self.stdin is not None:
            if input:
                self.stdin.write(input)
            self.stdin.close()
        out, err = [stream.read() if stream else no_bytes() for stream in (self.stdout, self.stderr)]
        outputs = await asyncio.gather(out, err)
        await self.wait()
        return outputs[0], outputs[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def no_bytes() -> bytes:
    return b""


PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
STDOUT = subprocess.STDOUT


async def fork(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    stdin: int = DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    terminal: bool = False,
) -> ForkedProcess:
    """Run a module as `python -m` does. Streams are `PIPE`, `DEVNULL`, a descriptor, or `None` for the test's own.

    With `STDOUT`, standard error is written where standard output is.
    """
    request = ForkRequest(
        module=module,
        arguments=list(arguments),
        env=dict(env),
        cwd=os.fspath(cwd),
        terminal=terminal,
        descriptors=[0, 1, 2],
        umask=None,
        group=None,
    )
    status = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status.connect(f"\0{_server()}")
    with contextlib.ExitStack() as theirs:
        child_in, our_in = _ends(theirs, stdin, number=0)
        child_out, our_out = _ends(theirs, stdout, number=1)
        child_err, our_err = (child_out, None) if stderr == STDOUT else _ends(theirs, stderr, number=2)
        socket.send_fds(status, [json.dumps(request).encode()], [child_in, child_out, child_err])
    reader = await _reader(status.detach())
    return ForkedProcess(
        int(await reader.readline()),
        reader,
        None if our_in is None else await _writer(our_in),
        None if our_out is None else await _reader(our_out),
        None if our_err is None else await _reader(our_err),
    )


@contextlib.contextmanager
def forked_commands() -> Iterator[None]:
    """Fork the workers and gateways that are started inside as `Program`s, by this process or by one forked in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(launcher.FORK_SERVER, _server())
        patch.setattr(processes, "die_with_parent", launcher)
        yield


@functools.cache
def _server() -> str:
    """Return the address of the run's server, among the abstract ones. The first process that asks starts it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    address = f"turnkeeper-tests-{run or uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # where the address is in use, its server already listens
        try:
            listener.bind(f"\0{address}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return address
        listener.listen()
        number = listener.fileno()
        owner = os.getppid() if run else os.getpid()
        command = [sys.executable, "-m", "tests.processes.fork_server", str(number), str(owner)]
        subprocess.Popen(command, stdin=DEVNULL, cwd=ROOT, pass_fds=[number])
    return address


def _ends(theirs: contextlib.ExitStack, stream: int | None, *, number: int) -> tuple[int, int | None]:
    """Return the process's end of a stream, and ours if there is one."""
    if stream == PIPE:
        ends = os.pipe() if number else tuple(reversed(os.pipe()))
        theirs.callback(os.close, ends[1])
        return ends[1], ends[0]
    if stream == DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null, None
    return (number if stream is None else stream), None


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(descriptor, "wb", buffering=0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)
