"""Files that are their owner's alone: 600, in folders of 700, whatever the umask is (API-4)."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077
"""Of programs that write into the state directory by themselves: the Temporal server, and SQLite in it."""

_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_OURS = ("temporal.db*", "temporal.json", "temporal.new", "archive.db*", "gateway.json", "logs", "logs/*.log*")
"""What may be ours in a state directory. Nothing else is touched: it may be a folder with other things in it."""

_log = logging.getLogger(__name__)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(…, opener=private_opener)`; one that is made is closed to others from the start."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make `folder`, closed to others, unless it is there. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(file: Path, text: str) -> None:
    """Replace the content of `file`; one that is made is closed to others."""
    with open(file, "w", encoding="utf-8", opener=private_opener) as opened:
        opened.write(text)


def close_to_others(state_dir: Path) -> None:
    """Take from everybody but the owner what they may do with the state directory and our files in it.

    Without the directory nothing happens. What can't be changed is logged: others may read it.
    """
    if state_dir.is_dir():
        for path in _private_paths(state_dir):
            _close(path)


def _private_paths(state_dir: Path) -> Iterator[Path]:
    # The directory first: once it is closed, nobody can exchange what is in it.
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
