"""Each library's own environment, in a folder that git ignores."""

import asyncio
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from turnkeeper.models.errors import TurnkeeperError

REQUIREMENTS = Path(__file__).with_name("requirements")


class LibraryError(TurnkeeperError):
    """A library can't be installed or run here; the message says why."""


async def python_of(library: str, folder: Path) -> Path:
    """Return the Python of the library's environment below `folder`, which is created if its packages have changed.

    Raises:
        LibraryError: The packages can't be installed.
    """
    requirements = REQUIREMENTS / f"{library}.txt"
    environment = folder / library
    python, installed = environment / "bin" / "python", environment / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"Installing {library}", flush=True)
        await _run(sys.executable, "-m", "venv", "--clear", str(environment))
        await _run(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements))
        installed.write_text(requirements.read_text())
    return python


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        raise LibraryError(f"it can't be installed: {last_line(output.decode(errors='replace'))}")


def last_line(output: str) -> str:
    r"""Return the last line with text, or that there is none.

    >>> last_line("one\ntwo\n\n")
    'two'
    """
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
