"""Private files: mode 600 in folders of mode 700, independent of the umask (API-4)."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077
"""For the Temporal server and SQLite, which write into the state directory themselves."""

_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_OURS = (
    *("temporal.db*", "temporal.json", "temporal.new", "temporal.program", "temporal.loopback"),
    *("archive.db*", "gateway.json", "worker.json", "logs", "logs/*.log*"),
)
"""Our files in a state directory. Others are not touched: the folder may have more in it."""

_log = logging.getLogger(__name__)


def private_opener(path: str, flags: int) -> int:
    """Open a file, for `open(…, opener=private_opener)`; a new one is private from the start."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Create a private `folder`, unless it exists. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(file: Path, text: str) -> None:
    """Replace the content of `file`; a new file is private."""
    with open(file, "w", encoding="utf-8", opener=private_opener) as opened:
        opened.write(text)


def close_to_others(state_dir: Path) -> None:
    """Remove other users' access to the state directory and our files in it.

    Does nothing if the directory does not exist. Files that can't be changed are logged.
    """
    if state_dir.is_dir():
        for path in _private_paths(state_dir):
            _close(path)


def _private_paths(state_dir: Path) -> Iterator[Path]:
    # The directory first: then nobody can exchange the files in it.
    yield state_dir
    for pattern in _OURS:
        yield from (path for path in state_dir.glob(pattern) if not path.is_symlink())


def _close(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _FOR_OTHERS:
            path.chmod(mode & ~_FOR_OTHERS)
    except FileNotFoundError:
        pass  # a log that was rotated in the meantime, say
    except OSError as error:
        _log.warning("%s stays open to other users of this machine (%s)", path, type(error).__name__)
