"""What commands share: options, how they end with an error, and the gateway that they ask."""

import asyncio
import contextlib
import http.client
import json
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from turnkeeper.models.ids import ID_RULE, is_id
from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings
from turnkeeper.models.wire import Frozen

UrlOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The gateway's address. Default: the stack of this folder.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, one object per line.")]


def exit_with(reason: Exception | str, *, code: int = 1) -> NoReturn:
    """End the command with `reason` on stderr."""
    print(reason, file=sys.stderr)
    raise typer.Exit(code)


def settings_or_exit(*, code: int = 1) -> Settings:
    """Return the settings; if they are wrong, end the command with the reason."""
    try:
        return load_settings()
    except SettingsError as error:
        exit_with(error, code=code)


def check_session_id(param: typer.CallbackParam, text: str | None) -> str | None:
    """Return the text of an option or argument; if it is not a session id, end the command."""
    if text is not None and not is_id(text):
        exit_with(f"{param.opts[0]} {text!r} is not a session id. An id has {ID_RULE}.")
    return text


def gateway_url(url: str | None) -> str:
    """Return the address of the option `--url`, by default of this folder's gateway."""
    if url is not None and not url.strip():
        exit_with("--url is blank. Set it to the gateway's address, such as http://HOST:PORT.")
    return url or Gateway.find(settings_or_exit()).url


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
