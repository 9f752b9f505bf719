"""A client that costs little: what a benchmark measures is the gateway, and both share the processors."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from time import perf_counter
from typing import Any

from benchmarks.environment import BOUND
from turnkeeper.ops.local.ports import LOOPBACK

KEPT_OPEN_SECONDS = 1.0
"""The gateway closes a connection that is idle for 5 s."""


class HttpClient:
    """Sends requests to a gateway on this machine, over one connection per thread."""

    def __init__(self, port: int, executor: ThreadPoolExecutor) -> None:
        self._port = port
        self._executor = executor
        self._threads = threading.local()

    async def get(self, path: str) -> Any:
        """Return the JSON of an answer. Raises `RuntimeError` unless its status is 200."""
        status, body = await self._send("GET", path, None)
        if status != 200:
            raise RuntimeError(f"GET {path}: {status} {body!r}")
        return json.loads(body)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        status, answer = await self._send("POST", path, json.dumps(body).encode())
        return status, json.loads(answer)

    async def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._exchange, method, path, body)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = self._connection()
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.status, response.read()
        self._threads.used_at = perf_counter()
        return answer

    def _connection(self) -> HTTPConnection:
        """Return the thread's connection; `request` opens it if it is closed."""
        if not hasattr(self._threads, "connection"):
            self._threads.connection = HTTPConnection(LOOPBACK, self._port, timeout=BOUND)
        elif perf_counter() - self._threads.used_at > KEPT_OPEN_SECONDS:
            self._threads.connection.close()
        connection: HTTPConnection = self._threads.connection
        return connection


@contextmanager
def http_client(port: int, *, at_once: int = 1) -> Iterator[HttpClient]:
    """Yield a client that sends up to `at_once` requests at the same time."""
    with ThreadPoolExecutor(at_once) as executor:
        yield HttpClient(port, executor)
