"""The address of a state directory's gateway, and whether it answers."""

import asyncio
import contextlib
import http.client
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
        return await asyncio.to_thread(self._status, path)

    def _status(self, path: str) -> int | None:
        connection = http.client.HTTPConnection(_ANYWHERE.get(self.host, self.host), self.port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
