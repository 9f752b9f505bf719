"""Programs that run beside us: in a process group of their own, on our leash, their output in a file (OPS-2)."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import BinaryIO

from turnkeeper.ops.local import leash
from turnkeeper.stores.private_files import make_private_folder, private_opener

LAST_LINES = 5

OUR_UMASK = -1
"""The umask of this process, as `subprocess` writes it."""


class Program:
    """A command that can be started, waited for and stopped, again and again.

    Its own process group keeps a Ctrl-C in the terminal from it: who started it stops it, in the right order. Start
    it from the main thread: Linux takes the end of the starting thread for the death of the starter.
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
        """Keep what to run, and in which folder. `log` is appended to; `env` replaces the environment; None: ours."""
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
        """Whether it has done some of its work since it was started; False: that isn't known."""
        return False

    async def start(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start it; the file descriptors `keep_open` are handed down."""
        with self._opened_log() as output:
            self._log_start = output.tell()
            # -I and -S: the leash needs the standard library only, and a quarter of the time without the rest.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", leash.__file__, str(os.getpid())),
                *self.command,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                env=self.env,
                cwd=self.folder,
                umask=self._umask,
                pass_fds=keep_open,
                process_group=0,
            )

    async def wait(self) -> int:
        """Return the exit code once it has ended; negative: the signal that ended it."""
        return await self._process.wait() if self._process else 0

    async def stop(self, *, seconds: float) -> None:
        """Have it ended: asked with SIGTERM, and after `seconds` killed with everything it started."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def kill(self) -> None:
        """Have it ended with everything it started, without a word to it: as by a power cut."""
        self._signal(signal.SIGKILL)
        await self.wait()

    def last_words(self) -> str:
        """Return the end of what it wrote since it was started."""
        with self.log.open("rb") as output:
            output.seek(self._log_start)
            lines = output.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())

    def _opened_log(self) -> BinaryIO:
        make_private_folder(self.log.parent)
        return open(self.log, "ab", opener=private_opener)

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
