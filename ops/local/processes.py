"""Free ports, and programs: in their own process group, ended when we die, output in a file (OPS-1, OPS-2).

Of environment variables, only the worker gets API keys (API-4). It gets our whole environment, since keys and the
variables in `mcp.json` may have any name. The other processes get an allow-list, so that a key with an unexpected name
does not reach them.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import BinaryIO

from turnkeeper.models.settings.settings import API_KEY_VARIABLE, ENV_PREFIX
from turnkeeper.ops.local import die_with_parent
from turnkeeper.stores.private_files import make_private_folder, private_opener

LOOPBACK = "127.0.0.1"

BLOCKED_PORTS = (6665, 6666, 6667, 6668, 6669, 6697, 10080, 6566, 4045, 3659, 1719, 1720, 1723)
"""Ports that no web page can connect to, under any name: the Fetch standard's "bad ports" ("port blocking").

Not among them: those that need a privilege, those that many machines use, such as X11's, and those that Chromium
doesn't block (measured: 4190, 6679).
"""


def free_port(host: str = LOOPBACK) -> int:
    return _bind(0, host)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    try:
        _bind(port, host)
    except OSError:
        return False
    return True


@contextmanager
def reserved_port(preferred: int = 0, host: str = LOOPBACK) -> Iterator[int]:
    """Yield `preferred` if it is free, else any free port, which the system gives to nobody else inside the block.

    Without the reservation, an outgoing connection could take the port before our program listens on it. Only Linux
    lets the program bind it beside the reserving socket; on other systems the port is chosen but not reserved.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, preferred if preferred and is_free(preferred, host) else 0))
        port: int = reservation.getsockname()[1]
        if sys.platform != "linux":
            reservation.close()
        yield port


@contextmanager
def reserved_blocked_port(host: str = LOOPBACK) -> Iterator[int]:
    """Yield a free port of `BLOCKED_PORTS`, else any free one, reserved as `reserved_port` does."""
    for port in BLOCKED_PORTS:
        with socket.socket() as reservation:
            try:
                # Without SO_REUSEADDR: two stacks that start at once never choose the same port.
                reservation.bind((host, port))
            except OSError:
                continue
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform != "linux":
                reservation.close()
            yield port
            return
    with reserved_port(host=host) as port:
        yield port


def random_loopback_address() -> str:
    """Return an address of this machine that other programs don't guess; on other systems than Linux, `LOOPBACK`.

    Only Linux has all of 127/8, which is 16 million addresses.
    """
    if sys.platform != "linux":
        return LOOPBACK
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def _bind(port: int, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As the servers do: connections that have just closed do not make a port busy.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound


MAX_LAST_LINES = 5

OUR_UMASK = -1
"""The umask of this process, as `subprocess` writes it."""


class Program:
    """A command that can be started, waited for and stopped, any number of times.

    A Ctrl-C in the terminal does not reach its process group, so that we can stop programs in the right order. Start
    it from the main thread: for Linux, the end of the starting thread is the death of the parent.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        umask: int = OUR_UMASK,
    ) -> None:
        """`log` is appended to; `env` replaces the environment (None: ours); `folder` is the working directory."""
        self.command = list(command)
        self.log = log
        self.env = env
        self.folder = folder
        self._umask = umask
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def has_worked(self) -> bool:
        """Whether it has done some work since its start; False also if that is unknown."""
        return False

    async def start(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start it; it inherits the file descriptors `keep_open`."""
        with self._open_log() as output:
            self._log_start = output.tell()
            # -I and -S: the script needs only the standard library and starts four times as fast without the rest.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), f"{self._umask:o}"),
                *self.command,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env=self.env,
                cwd=self.folder,
                pass_fds=keep_open,
            )

    async def wait(self) -> int:
        """Return the exit code once it has ended; negative: the signal that ended it."""
        return await self._process.wait() if self._process else 0

    async def stop(self, *, seconds: float) -> None:
        """Send SIGTERM, and after `seconds` SIGKILL to its whole process group."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def kill(self) -> None:
        """Send SIGKILL to its whole process group."""
        self._signal(signal.SIGKILL)
        await self.wait()

    def last_output(self) -> str:
        """Return the last lines that it wrote since its start, on one line."""
        with self.log.open("rb") as output:
            output.seek(self._log_start)
            lines = output.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-MAX_LAST_LINES:] if line.strip())

    def _open_log(self) -> BinaryIO:
        make_private_folder(self.log.parent)
        return open(self.log, "ab", opener=private_opener)

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                try:
                    os.killpg(self._process.pid, number)
                except ProcessLookupError:  # it begins its group a moment after its start
                    os.kill(self._process.pid, number)


_EVERY_PROGRAM = frozenset({"HOME", "PATH", "TMPDIR", "TZ"})

_GATEWAY = _EVERY_PROGRAM | {
    *("LANG", "LOGNAME", "USER", "VIRTUAL_ENV", "XDG_CONFIG_HOME"),
    *("LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE"),
}
_GATEWAY_PREFIXES = (ENV_PREFIX, "LC_", "PG", "PYTHON", "TEMPORAL_")
"""Settings; libpq's variables, for an archive in PostgreSQL; the interpreter's; Temporal's own configuration."""

_KEY_SETTINGS = (f"{ENV_PREFIX}OPENAI_CHAT__", API_KEY_VARIABLE)
"""Settings of a model endpoint, among them its key, which only the worker calls; and the key of a person."""


def server_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the embedded Temporal server: no keys, and no `TEMPORAL_*`, which it would read.

    >>> server_environment({"PATH": "/bin", "OPENAI_API_KEY": "sk-1", "TEMPORAL_ADDRESS": "cloud:7233"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in variables.items() if name in _EVERY_PROGRAM}


def gateway_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a gateway. Without keys, it can't choose the first model itself.

    >>> gateway_environment({"TURNKEEPER_API_PORT": "80", "turnkeeper_openai_chat__api_key": "k", "MY_KEY": "k"})
    {'TURNKEEPER_API_PORT': '80'}
    """
    return {name: value for name, value in variables.items() if _is_for_gateway(name)}


def _is_for_gateway(name: str) -> bool:
    # Names of settings are case-insensitive.
    if name.upper().startswith(_KEY_SETTINGS):
        return False
    return name in _GATEWAY or name.upper().startswith(_GATEWAY_PREFIXES)
