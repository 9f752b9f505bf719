"""The address of a state directory's gateway, and whether it answers."""

import asyncio
import contextlib
import http.client
import json
from http import HTTPStatus
from pathlib import Path

from pydantic import ValidationError

from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.wire import Frozen

PROBE_SECONDS = 3.0

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, never bound to
"""Wildcard hosts, each with a host to connect to instead."""


class Gateway(Frozen):
    """The address that a gateway listens on."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = _ANYWHERE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @classmethod
    def find(cls, settings: Settings) -> "Gateway":
        """Return the gateway that `turnkeeper up` started, else the one in the settings."""
        with contextlib.suppress(OSError, ValidationError):
            return cls.model_validate_json(cls.file(settings.state_dir).read_text())
        return cls(host=settings.api_host, port=settings.api_port)

    @staticmethod
    def file(state_dir: Path) -> Path:
        return state_dir / "gateway.json"

    async def status(self, path: str) -> int | None:
        """Return the HTTP status of a GET of `path`; None without a response within 3 s."""
        status, _ = await asyncio.to_thread(self._get, path)
        return status

    async def has_worker(self) -> bool:
        """Return whether the gateway is ready for prompts, and a worker to process them."""
        status, body = await asyncio.to_thread(self._get, "/readyz")
        return status == HTTPStatus.OK and json.loads(body)["workers"] > 0

    def _get(self, path: str) -> tuple[int | None, bytes]:
        connection = http.client.HTTPConnection(_ANYWHERE.get(self.host, self.host), self.port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()
