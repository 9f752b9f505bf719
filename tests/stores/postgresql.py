"""A PostgreSQL server of the tests' own: files in a temporary folder, a port of loopback, and gone with the tests."""

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.restart_ports import restart_port

HOST = "127.0.0.1"
SUPERUSER = "tests"
SECONDS = 60.0
"""Seconds within which every program here must finish."""

ROOM_BYTES = 500_000_000
"""More than a server and its databases take here."""

OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    # Nothing here outlives a power cut anyway.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`: the newest that Debian has, else the one on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: _version(folder.parent.name))
    on_path = shutil.which("initdb")
    candidates = [*reversed(debian), *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in candidates if all((folder / name).exists() for name in _NEEDED)), None)


class PostgreSQL:
    """One server. It refuses to be root's: then it is run as `postgres` or, without such a user, as `nobody`."""

    def __init__(self, programs: Path, folder: Path) -> None:
        """Create the files of a server without databases in `folder`, which its user then owns."""
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = restart_port()
        self.password = f"{secrets.token_hex()}:@/%"
        self._make()

    @property
    def environment(self) -> dict[str, str]:
        """The environment that programs of its superuser need."""
        return {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PGHOST": HOST,
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": self.password,
        }

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        options = [f"--{name}={value}" for name, value in {**OPTIONS, "port": self.port}.items()]
        self._process = subprocess.Popen(
            [*_DIE_WITH_PARENT, self._programs / "postgres", "-D", self._files, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **self._as_its_user,
        )
        output: deque[str] = deque(maxlen=20)
        settled = threading.Event()
        threading.Thread(target=_listen, args=(self._process, output, settled), daemon=True).start()
        assert settled.wait(SECONDS), "not ready in time"
        assert any(_READY in line for line in output), "".join(output)

    def stop(self) -> None:
        """Stop it; that closes every connection."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(SECONDS)

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """Create an empty database for the block; yield its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.run_sql(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.run_sql(f"DROP DATABASE {name} WITH (FORCE)")

    def run_sql(self, statement: str, *, database: str = "postgres") -> str:
        """Return the rows of `statement`, run as the superuser."""
        command = [self._programs / "psql", "-XAtqc", statement, database]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=True)
        return ran.stdout.strip()

    def _make(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self.password)
        for path in (self._folder, password_file):
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        options = ["--auth=scram-sha-256", f"--username={SUPERUSER}", f"--pwfile={password_file}"]
        options += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        command = [self._programs / "initdb", *options, self._files]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, **self._as_its_user
        )
        assert result.returncode == 0, result.stderr

    @property
    def _files(self) -> Path:
        return self._folder / "files"

    @cached_property
    def _user(self) -> pwd.struct_passwd:
        if os.geteuid():
            return pwd.getpwuid(os.geteuid())
        users = {user.pw_name: user for user in pwd.getpwall()}
        return users.get("postgres") or users["nobody"]

    @property
    def _as_its_user(self) -> dict[str, Any]:
        own: dict[str, Any] = {"cwd": self._folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}
        if os.geteuid():
            return own
        return {**own, "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


@contextmanager
def running(programs: Path) -> Iterator[PostgreSQL]:
    """Run a server for the block."""
    # Not pytest's temporary folder: that is closed to the user whom the server may have to be run as.
    with tempfile.TemporaryDirectory(prefix="turnkeeper-postgresql-", dir=_memory()) as folder:
        server = PostgreSQL(programs, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


_NEEDED = ("initdb", "postgres", "psql")

_READY = "database system is ready to accept connections"

# A SIGINT, which is a fast shutdown, when the tests are killed.
_DIE_WITH_PARENT = [shutil.which("setpriv"), "--pdeathsig", "INT"] if shutil.which("setpriv") else []


def _memory() -> Path | None:
    """Return a folder in memory with room for a server: a new database is there in a tenth of the time."""
    folder = Path("/dev/shm")
    usable = folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM_BYTES
    return folder if usable else None


def _listen(process: subprocess.Popen[bytes], output: deque[str], settled: threading.Event) -> None:
    """Read what the server says, until it ends; `settled`: it is ready, or never will be."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in map(bytes.decode, lines):
            output.append(line)
            if _READY in line:
                settled.set()
    settled.set()


def _version(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))
