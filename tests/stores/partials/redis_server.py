"""A Redis server of the tests' own: nothing on disk, a port of loopback, and gone with the tests."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tests.restart_ports import restart_port
from turnkeeper.ops.local import die_with_parent
from turnkeeper.ops.local.processes import LOOPBACK

SECONDS = 30.0
"""Bound of everything the server is asked for here."""


class RedisServer:
    """One server, which can be killed and started again at the same port, empty."""

    def __init__(self, program: str) -> None:
        """Be ready to start it."""
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._port = restart_port()
        self._password = f"{secrets.token_hex(8)}:@/%"

    @property
    def url(self) -> str:
        """Where it is, with its password."""
        return f"redis://:{quote(self._password, safe='')}@{self.place}/0"

    @property
    def place(self) -> str:
        """Its address without the password."""
        return f"{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        options = ["--port", str(self._port), "--bind", LOOPBACK, "--save", "", "--requirepass", self._password]
        command = [sys.executable, die_with_parent.__file__, str(os.getpid()), "77", self._program, *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd="/")
        # It loads nothing, so it answers as soon as it can be reached.
        with Redis.from_url(self.url, retry=Retry(ConstantBackoff(0.02), int(SECONDS / 0.02))) as redis:
            redis.ping()

    def kill(self) -> None:
        """Kill it with all its data."""
        if self._process:
            self._process.kill()
            self._process.wait(SECONDS)


def find_redis() -> str | None:
    """Return the program."""
    return shutil.which("redis-server")


@contextmanager
def running(program: str) -> Iterator[RedisServer]:
    """Run a server for the duration of the block."""
    server = RedisServer(program)
    try:
        server.start()
        yield server
    finally:
        server.kill()
