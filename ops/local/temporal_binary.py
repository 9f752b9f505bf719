"""The `temporal` program: where it is, which server it contains, which flags it has (OPS-2)."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE

from pydantic import ValidationError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.private_files import make_private_folder, write_private

CALL_SECONDS = 30.0

HIDE_NEWS = "--ui-disable-news-fetch"
"""The option of newer servers without which their Web UI asks for news on the Internet."""

MIN_PROGRAM_BYTES = 10_000_000
"""A smaller file may be a script that runs another program, which can change while the script does not."""

INSTALL = "install it with `pip install 'turnkeeper[local]'`"


class NoBinaryError(TurnkeeperError):
    """There is no usable `temporal` program; the message is a sentence that says how to get one."""


class ProgramFacts(Frozen):
    """The version and features that a program has reported, and the state of its file then."""

    path: str
    size: int
    modified_ns: int
    version: str
    """Version of the server in it."""
    hides_news: bool

    @classmethod
    def recorded(cls, record: Path) -> "ProgramFacts | None":
        """Return what was recorded last; `None`: nothing that can be read."""
        try:
            return cls.model_validate_json(record.read_text())
        except (OSError, ValidationError):
            return None

    def describes(self, binary: Path, state: os.stat_result) -> bool:
        """Return whether these are the facts of `binary` with its file in this state."""
        return (self.path, self.size, self.modified_ns) == (str(binary), state.st_size, state.st_mtime_ns)


async def read_program_facts(binary: Path, *, state_dir: Path) -> ProgramFacts:
    """Ask the program, or return what it said at the last start if its file is the same.

    Raises:
        NoBinaryError: It cannot be run, or does not print a version.
    """
    record = state_dir / "temporal.program"
    recorded, state = ProgramFacts.recorded(record), os.stat(binary)
    if recorded is not None and recorded.describes(binary, state):
        return recorded
    # Both at once: each starts the program, which takes a tenth of a second.
    version, hides_news = await asyncio.gather(server_version(binary), has_flag(binary, HIDE_NEWS))
    facts = ProgramFacts(
        path=str(binary), size=state.st_size, modified_ns=state.st_mtime_ns, version=version, hides_news=hides_news
    )
    if facts.size >= MIN_PROGRAM_BYTES:
        write_private(record, facts.model_dump_json())
    return facts


def find_binary(state_dir: Path) -> Path | None:
    """Return the `temporal` on PATH, else the one installed beside our Python, else one downloaded before."""
    on_path, beside_python = shutil.which("temporal"), Path(sys.executable).parent / "temporal"
    candidates = [*([Path(on_path)] if on_path else []), beside_python, *sorted(_download_dir(state_dir).glob("*"))]
    return next((candidate.absolute() for candidate in candidates if os.access(candidate, os.X_OK)), None)


async def find_or_download_binary(state_dir: Path) -> Path:
    """Return a `temporal` to run; if none is installed, the SDK downloads the one it is made for.

    Raises:
        NoBinaryError: None is installed, and none could be downloaded.
    """
    if binary := find_binary(state_dir):
        return binary
    # Imported only here: it loads the SDK's worker.
    from temporalio.testing import WorkflowEnvironment

    folder = _download_dir(state_dir)
    make_private_folder(folder)
    try:
        # The SDK downloads it only to start a server of its own.
        environment = await WorkflowEnvironment.start_local(download_dest_dir=str(folder))
        await environment.shutdown()
    except RuntimeError as error:
        raise NoBinaryError(f"No `temporal` program found, and the download failed ({error}): {INSTALL}.") from error
    if binary := find_binary(state_dir):
        return binary
    raise NoBinaryError(f"The download of `temporal` left no program in {folder}: {INSTALL}.")


async def server_version(binary: Path) -> str:
    """Return the version of the server that it contains, such as 1.32.0.

    Raises:
        NoBinaryError: It cannot be run, or does not print a version.
    """
    output = await _run_program(binary, "--version")
    version = re.search(r"Server ([\w.-]+)", output)
    if version is None:
        raise NoBinaryError(f"{binary} does not say which server it contains ({output.strip()!r:.100}): {INSTALL}.")
    return version[1]


async def has_flag(binary: Path, flag: str) -> bool:
    """Return whether the dev server of this version has `flag`. Raises `NoBinaryError`."""
    return flag in await _run_program(binary, "server", "start-dev", "--help")


async def _run_program(binary: Path, *arguments: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(binary, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
        output, _ = await asyncio.wait_for(process.communicate(), CALL_SECONDS)
    except (OSError, TimeoutError) as error:
        raise NoBinaryError(f"{binary} cannot be run ({error}): {INSTALL}.") from error
    return output.decode(errors="replace")


def _download_dir(state_dir: Path) -> Path:
    return state_dir / "bin"
