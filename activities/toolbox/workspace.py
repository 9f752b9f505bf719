"""A session's folder, and the only access to it (AGT-6).

A path that was checked as text can be replaced with a link before it is used, and comparing prefixes is wrong even
without a race (CVE-2025-53109, CVE-2025-53110). So a path is only split into names, and each name is opened relative to
the descriptor of the folder before it, with `O_NOFOLLOW`: the kernel itself refuses to follow a link. `..` is resolved
beforehand as text, which is exact where no link is followed.

The worker's own configuration may be below the root, and is not part of the workspace (`OffLimits`): writing it would
allow running any program, and reading it would reveal its credentials. It is recognised by the identity of the file, so
that another name is no way in, and by that of its folder, so that it can't be created either.

The checks before a name is opened (`_require`) only make the messages clear; the flags make the access safe.
"""

import errno
import fcntl
import os
import secrets
import stat
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import BufferedReader
from pathlib import Path

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.ids import is_tenant

MAX_NAME_BYTES = 255
MAX_LEVELS = 64
MAX_READ_BYTES = 10_000_000
MAX_WRITE_BYTES = 1_000_000

TENANTS = ".tenants"
"""The folder below the root with a folder for each tenant. It is hidden, so no path leads to it (API-4)."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A FIFO or a terminal that was swapped in must not block the thread, nor become its terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

_UNSHOWABLE = {
    "Cc": "a control character",
    "Cs": "a lone surrogate",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
"""Unicode categories that names must not contain, since they would not be one line of text."""


class WorkspaceError(TurnkeeperError):
    """The workspace rejects a path or an operation. The message names the path and what is allowed."""


class MissingError(WorkspaceError):
    """There is nothing at the path."""


@dataclass(frozen=True)
class Entry:
    """A folder or a regular file. `path` is relative to the workspace; a folder's `size` is 0."""

    path: str
    is_folder: bool
    size: int


class OffLimits:
    """Files and folders that are not part of any workspace, whether or not they exist yet.

    They are recognised by their current identities, so create a new object for each use.
    """

    def __init__(self, paths: Collection[Path] = ()) -> None:
        ends = {end for path in paths for end in (path.absolute(), Path(os.path.realpath(path)))}
        self._files = {identity for end in ends if (identity := _identity_at(end))}
        self._places = {(identity, _fold_name(end.name)) for end in ends if (identity := _identity_at(end.parent))}

    def has_place(self, name: str, *, parent: int) -> bool:
        """Return whether `name` in the folder with descriptor `parent` is, or would be, one of them."""
        return (_identity(os.fstat(parent)), _fold_name(name)) in self._places

    def has(self, state: os.stat_result) -> bool:
        """Return whether the file with this `stat` result is one of them, whatever its name."""
        return _identity(state) in self._files


class Workspace:
    """A folder whose files can be read, listed and replaced, without access to anything outside.

    Not part of it: links, devices, names that begin with "." (`.git`, `.env`, `.turnkeeper`), and what is off limits.
    Its methods block; call them in a thread.
    """

    def __init__(self, root: Path, folder: tuple[str, ...] = (), off_limits: OffLimits | None = None) -> None:
        """Use the names `folder` below `root`; `Workspace.at` takes a path instead. Nothing is opened yet."""
        self._root = root
        self._folder = folder
        self._off_limits = off_limits or OffLimits()

    @classmethod
    def at(cls, root: Path, folder: str, *, tenant: str = "", off_limits: Collection[Path] = ()) -> "Workspace":
        """Return the workspace in `folder`, a relative path below the tenant's folder; "" is that folder itself.

        The default tenant's folder is `root`. The workspace need not exist: the first write creates it. Raises
        `WorkspaceError`.
        """
        if not is_tenant(tenant):
            raise WorkspaceError(f"{tenant!r} is not a valid tenant.")
        names = (TENANTS, tenant) if tenant else ()
        return cls(root, (*names, *_names_in(folder)), OffLimits(off_limits))

    @property
    def path(self) -> Path:
        """The absolute path of the folder, which need not exist."""
        return self._root.absolute().joinpath(*self._folder)

    def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a regular file. Raises `WorkspaceError`, also if it has more than `max_bytes`."""
        names = _names_of_file(path)
        with self._open(path, names[:-1]) as folder, self._open_file(path, names[-1], folder) as file:
            # One more than allowed: the file may grow while it is read.
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise _error(path, f"is too large: files of up to {max_bytes:,} bytes can be read.")
        return content

    def digest(self, path: str) -> str:
        """Return the SHA-256 of a regular file of any size, in hex; empty if there is none. Raises `WorkspaceError`."""
        names = _names_of_file(path)
        try:
            with self._open(path, names[:-1]) as folder:
                return self._digest(path, names[-1], folder)
        except MissingError:
            return ""

    def write(self, path: str, content: bytes, *, instead_of: str | None = None) -> None:
        """Create or replace a regular file atomically.

        Missing folders are created, and a replaced file keeps its permissions. A second attempt has no further effect.
        `instead_of` is the SHA-256 of the file that is replaced, empty if it is created; `None`: whatever is there.
        Raises `WorkspaceError`, also if there is another file.
        """
        check_size(path, content)
        names = _names_of_file(path)
        try:
            with self._open(path, names[:-1], create=not instead_of) as folder:
                if instead_of is not None:
                    _lock(folder)
                    # A second attempt finds what the first one wrote.
                    if self._digest(path, names[-1], folder) not in (instead_of, sha256(content).hexdigest()):
                        raise _changed(path)
                _replace(names[-1], content, folder, mode=self._mode_to_keep(path, names[-1], folder))
        except MissingError:
            if not instead_of:
                raise
            raise _changed(path) from None

    def entries(self, path: str = ".") -> list[Entry]:
        """Return the entries of a folder, sorted by name. Raises `WorkspaceError`."""
        names = _names_in(path)
        try:
            with self._open(path, names) as folder, os.scandir(folder) as scanned:
                return sorted(self._entries(scanned, names, folder), key=lambda entry: entry.path)
        except MissingError:
            if names:
                raise
            return []  # the workspace itself: not yet written to

    def entry(self, path: str) -> Entry:
        """Return the entry at `path`, with the path normalised. Raises `WorkspaceError`."""
        names = _names_in(path)
        if not names:
            return Entry("", is_folder=True, size=0)
        with self._open(path, names[:-1]) as folder:
            return _entry(names, self._require(path, names[-1], folder, stat.S_IFREG, stat.S_IFDIR))

    def walk(self, path: str = ".") -> Iterator[Entry]:
        """Yield all entries below a folder, each folder before its content, sorted by name; or a file itself.

        Entries that vanish or can't be opened meanwhile are omitted. Raises `WorkspaceError` for `path` itself.
        """
        top = self.entry(path)
        stack = self.entries(path)[::-1] if top.is_folder else [top]
        while stack:
            entry = stack.pop()
            yield entry
            if entry.is_folder:
                with suppress(WorkspaceError):
                    stack += self.entries(entry.path)[::-1]

    @contextmanager
    def _open(self, path: str, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder, reached name by name. `path` is for messages. Raises `WorkspaceError`."""
        with _os_errors_explained(path):
            if create:
                self._root.mkdir(parents=True, exist_ok=True)
            # The path of the root may contain links: the operator chose it.
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in (*self._folder, *names):
                    inner = self._open_folder(path, name, descriptor, create=create)
                    os.close(descriptor)
                    descriptor = inner
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def _open_file(self, path: str, name: str, folder: int) -> Iterator[BufferedReader]:
        """Yield a regular file, open for reading. Raises `WorkspaceError`."""
        self._require(path, name, folder, stat.S_IFREG)
        with open(os.open(name, _READ, dir_fd=folder), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _error(path, "was swapped for something that is no regular file.")
            yield file

    def _digest(self, path: str, name: str, folder: int) -> str:
        try:
            with self._open_file(path, name, folder) as file:
                return file_digest(file, "sha256").hexdigest()
        except (MissingError, FileNotFoundError):
            return ""

    def _require(self, path: str, name: str, parent: int, *types: int) -> os.stat_result:
        """Return the `stat` result of `name`. Raises `WorkspaceError` if it is off limits or not of `types`."""
        off_limits = "is not part of the workspace: what this worker is configured by is off limits."
        if self._off_limits.has_place(name, parent=parent):
            raise _error(path, off_limits)
        state = _require(path, name, parent, *types)
        if self._off_limits.has(state):
            raise _error(path, off_limits)
        return state

    def _open_folder(self, path: str, name: str, parent: int, *, create: bool) -> int:
        try:
            self._require(path, name, parent, stat.S_IFDIR)
        except MissingError:
            if not create:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _mode_to_keep(self, path: str, name: str, folder: int) -> int | None:
        """Return the permissions of the file to be replaced; `None` if it is new. Raises `WorkspaceError`."""
        try:
            return self._require(path, name, folder, stat.S_IFREG).st_mode & 0o777
        except MissingError:
            return None

    def _entries(self, scanned: "Iterator[os.DirEntry[str]]", parents: tuple[str, ...], folder: int) -> Iterator[Entry]:
        """Yield a folder's entries without links, devices and invalid names."""
        for item in scanned:
            if _problem_of(item.name) or len(parents) >= MAX_LEVELS:
                continue
            if self._off_limits.has_place(item.name, parent=folder):
                continue
            with suppress(FileNotFoundError):
                state = item.stat(follow_symlinks=False)
                is_usable = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
                if is_usable and not self._off_limits.has(state):
                    yield _entry((*parents, item.name), state)


def _identity_at(path: Path) -> tuple[int, int] | None:
    try:
        return _identity(path.stat())
    except (OSError, ValueError):
        return None


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


def _fold_name(name: str) -> str:
    r"""Return one form for all names that some file system treats as equal: case, accents, invisible characters.

    >>> _fold_name("MCP.JSON"), _fold_name("mcp\u200c.json. ")
    ('mcp.json', 'mcp.json')
    """
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", visible).casefold()).rstrip(". ")


def _names_of_file(path: str) -> tuple[str, ...]:
    names = _names_in(path)
    if not names:
        raise _error(path, "is the workspace itself; a file in it is wanted.")
    return names


def _names_in(path: str) -> tuple[str, ...]:
    """Split a relative path into names, without leaving its root. Raises `WorkspaceError`."""
    if path.startswith("/"):
        raise _error(path, "is an absolute path; paths relative to the workspace are allowed.")
    names: list[str] = []
    for name in path.split("/"):
        if name in ("", "."):
            continue
        if name != "..":
            if problem := _problem_of(name):
                raise _error(path, problem)
            names.append(name)
        elif names:
            names.pop()
        else:
            raise _error(path, "leaves the workspace; only paths inside it are allowed.")
    if len(names) > MAX_LEVELS:
        raise _error(path, f"is {len(names)} levels deep; {MAX_LEVELS} are allowed.")
    return tuple(names)


def _problem_of(name: str) -> str | None:
    """Return why a name can't be part of a workspace; `None` if it can."""
    if name.startswith("."):
        return f"is hidden ({_display(name)}): names that begin with '.' are not part of the workspace."
    unshowable = next((char for char in name if unicodedata.category(char) in _UNSHOWABLE), None)
    if unshowable is not None:
        kind = _UNSHOWABLE[unicodedata.category(unshowable)]
        return f"holds {kind} ({unshowable!r}); names of ordinary characters are allowed."
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"holds a name of {len(name.encode()):,} bytes; {MAX_NAME_BYTES} are allowed."
    return None


def _require(path: str, name: str, parent: int, *types: int) -> os.stat_result:
    """Return the `stat` result of `name`, without following links. Raises `WorkspaceError` if it is not of `types`."""
    try:
        state = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        raise _missing(path) from None
    kind = stat.S_IFMT(state.st_mode)
    if kind in types:
        return state
    if kind == stat.S_IFLNK:
        raise _error(path, f"leads over {_display(name)}, a symbolic link; links are not followed.")
    if kind == stat.S_IFDIR:
        raise _error(path, "is a folder; a file is wanted.")
    if kind == stat.S_IFREG:
        raise _error(path, f"needs {_display(name)} to be a folder; it is a file.")
    raise _error(path, f"leads to {_display(name)}, a device, socket or pipe; files and folders are allowed.")


def check_size(path: str, content: bytes) -> None:
    """Raise `WorkspaceError` if the file would be too large."""
    if len(content) > MAX_WRITE_BYTES:
        raise _error(path, f"was not written: {len(content):,} bytes given, {MAX_WRITE_BYTES:,} are allowed.")


def _lock(folder: int) -> None:
    """Keep other guarded writes out of a folder until it is closed: of two at once, the second finds a change."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(folder, fcntl.LOCK_EX)


def _replace(name: str, content: bytes, folder: int, *, mode: int | None) -> None:
    temporary = f".{secrets.token_hex(8)}.tmp"  # hidden, so never part of the workspace
    try:
        with open(os.open(temporary, _CREATE, 0o666, dir_fd=folder), "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            # Without it a power cut could leave an empty file after the call was recorded as done.
            os.fsync(file.fileno())
        # `os.replace` replaces a link and doesn't follow it.
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _entry(names: tuple[str, ...], state: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(state.st_mode)
    return Entry("/".join(names), is_folder=is_folder, size=0 if is_folder else state.st_size)


@contextmanager
def _os_errors_explained(path: str) -> Iterator[None]:
    """Convert errors of the operating system to `WorkspaceError`: a swapped link (`ELOOP`), a full disk, ..."""
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _error(path, "leads over a link or over no folder; links are not followed.") from error
        raise _error(path, f"can't be used: {error.strerror}.") from error


def _missing(path: str) -> MissingError:
    return MissingError(f"{_display(path)} does not exist in the workspace.")


def _changed(path: str) -> WorkspaceError:
    return _error(path, "was not written: the file has changed since this was approved. Read it again first.")


def _error(path: str, why: str) -> WorkspaceError:
    return WorkspaceError(f"{_display(path)} {why}")


def _display(path: str) -> str:
    """Return a path for messages: on one line, encodable, and shortened."""
    return repr(path if len(path) <= 80 else f"{path[:50]}...{path[-27:]}")
