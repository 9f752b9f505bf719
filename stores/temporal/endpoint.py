"""Which Temporal server is used (OPS-2).

An address in `TEMPORAL_*` or `temporal.toml` is used as it is, with its namespace, TLS and API key. Without one, the
embedded server is used. It writes its address to `temporal.json` in the state directory; until then `temporal_port` is
tried.

This module loads the SDK only if Temporal's own configuration may exist: `turnkeeper up` needs it for nothing else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.wire import Frozen

DEFAULT_NAMESPACE = "default"

WEB_UI_PATH = "/temporal"
"""Where the gateway serves Temporal's Web UI, which must have it as its public path."""


class TemporalAccessError(TurnkeeperError):
    """Temporal can't be used. The message says why and what to do."""


class EmbeddedServer(Frozen):
    """The addresses of the embedded server, as it wrote them to the state directory."""

    address: str
    ui_url: str | None
    """Where the gateway reaches its Web UI; `None`: it has none."""
    pid: int

    @staticmethod
    def file(state_dir: Path) -> Path:
        return state_dir / "temporal.json"

    @classmethod
    def recorded(cls, state_dir: Path) -> "EmbeddedServer | None":
        """Return what the last server wrote; it may have died since. `None`: none was started, or it was stopped."""
        try:
            return cls.model_validate_json(cls.file(state_dir).read_text())
        except (OSError, ValidationError):
            return None


@dataclass(frozen=True)
class Endpoint:
    """A server and a namespace in it. `embedded`: no other server is configured."""

    address: str
    namespace: str
    embedded: bool
    access: Mapping[str, Any]
    """TLS, API key and headers from Temporal's own configuration."""


def find_endpoint(settings: Settings) -> Endpoint:
    """Return the configured server, without connecting to it.

    Raises:
        TemporalAccessError: Temporal's own configuration is unreadable, or has credentials but no address.
    """
    try:
        access = _configuration() if _may_be_configured() else {}
    except (RuntimeError, OSError) as error:
        raise TemporalAccessError(f"The configuration in TEMPORAL_* or temporal.toml is unusable: {error}.") from error
    address, namespace = access.pop("target_host", None), access.pop("namespace", DEFAULT_NAMESPACE)
    if address is None and access:
        names = ", ".join(sorted(access))
        raise TemporalAccessError(
            f"TEMPORAL_* or temporal.toml gives {names} but no address: set TEMPORAL_ADDRESS too."
        )
    recorded = EmbeddedServer.recorded(settings.state_dir) if address is None else None
    embedded_address = recorded.address if recorded else f"127.0.0.1:{settings.temporal_port}"
    return Endpoint(address or embedded_address, namespace, embedded=address is None, access=access)


def web_ui_origin(settings: Settings) -> str | None:
    """Return where the gateway reaches the Web UI that it serves; `None`: it serves none."""
    if settings.temporal_ui_proxy:
        return settings.temporal_ui_proxy
    embedded = EmbeddedServer.recorded(settings.state_dir)
    return embedded.ui_url if embedded else None


def _configuration() -> dict[str, Any]:
    """Return what Temporal's own configuration says. Raises `RuntimeError` and `OSError`."""
    from temporalio.envconfig import ClientConfigProfile

    return {**ClientConfigProfile.load().to_client_connect_config()}


def _may_be_configured() -> bool:
    """Return False only where the SDK would find neither a variable nor a file. Raises `OSError`."""
    home = os.environ.get("HOME")
    if not home or any(name.startswith("TEMPORAL_") for name in os.environ):
        return True
    # The folders of every system that we run on; one more does no harm.
    folders = [Path(home, ".config"), Path(home, "Library", "Application Support")]
    if own_folder := os.environ.get("XDG_CONFIG_HOME"):
        folders.append(Path(own_folder))
    return any((folder / "temporalio" / "temporal.toml").exists() for folder in folders)
