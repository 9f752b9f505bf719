"""Which environment variables a process of ours is given: the keys of models are the worker's alone (API-4).

The worker has all of ours, as the keys and what `mcp.json` refers to may have any name. The others get what is known
to be of use to them, so that a key under a name that nobody thought of stays away from them too.
"""

from collections.abc import Mapping

from turnkeeper.models.settings.settings import ENV_PREFIX

_OF_EVERY_PROGRAM = frozenset({"HOME", "PATH", "TMPDIR", "TZ"})

_OF_THE_GATEWAY = _OF_EVERY_PROGRAM | {
    *("LANG", "LOGNAME", "USER", "VIRTUAL_ENV", "XDG_CONFIG_HOME"),
    *("LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE"),
}
_PREFIXES_OF_THE_GATEWAY = (ENV_PREFIX, "LC_", "PG", "PYTHON", "TEMPORAL_")
"""Settings; libpq's, for an archive in PostgreSQL; the interpreter's; Temporal's own configuration."""

_KEY_SETTINGS = f"{ENV_PREFIX}OPENAI_CHAT__"
"""Settings of an endpoint, its key among them: only the worker speaks to it."""


def server_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what of `variables` the embedded Temporal server gets: no keys, and no `TEMPORAL_*`, which it would read.

    >>> server_environment({"PATH": "/bin", "OPENAI_API_KEY": "sk-1", "TEMPORAL_ADDRESS": "cloud:7233"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in variables.items() if name in _OF_EVERY_PROGRAM}


def gateway_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what of `variables` a gateway gets. Without keys it can't choose the first model by them.

    >>> gateway_environment({"TURNKEEPER_API_PORT": "80", "turnkeeper_openai_chat__api_key": "k", "MY_KEY": "k"})
    {'TURNKEEPER_API_PORT': '80'}
    """
    return {name: value for name, value in variables.items() if _is_of_the_gateway(name)}


def _is_of_the_gateway(name: str) -> bool:
    # Settings are read whatever their case is.
    if name.upper().startswith(_KEY_SETTINGS):
        return False
    return name in _OF_THE_GATEWAY or name.upper().startswith(_PREFIXES_OF_THE_GATEWAY)
