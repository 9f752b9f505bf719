"""Environment variables of the processes that we start: only the worker gets API keys (API-4).

The worker gets our whole environment, since keys and the variables in `mcp.json` may have any name. The other
processes get an allow-list, so that a key with an unexpected name does not reach them.
"""

from collections.abc import Mapping

from turnkeeper.models.settings.settings import API_KEY_VARIABLE, ENV_PREFIX

_EVERY_PROGRAM = frozenset({"HOME", "PATH", "TMPDIR", "TZ"})

_GATEWAY = _EVERY_PROGRAM | {
    *("LANG", "LOGNAME", "USER", "VIRTUAL_ENV", "XDG_CONFIG_HOME"),
    *("LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE"),
}
_GATEWAY_PREFIXES = (ENV_PREFIX, "LC_", "PG", "PYTHON", "TEMPORAL_")
"""Settings; libpq's variables, for an archive in PostgreSQL; the interpreter's; Temporal's own configuration."""

_KEY_SETTINGS = (f"{ENV_PREFIX}OPENAI_CHAT__", API_KEY_VARIABLE)
"""Settings of a model endpoint, among them its key, which only the worker calls; and the key of a person."""


def server_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the embedded Temporal server: no keys, and no `TEMPORAL_*`, which it would read.

    >>> server_environment({"PATH": "/bin", "OPENAI_API_KEY": "sk-1", "TEMPORAL_ADDRESS": "cloud:7233"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in variables.items() if name in _EVERY_PROGRAM}


def gateway_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a gateway. Without keys, it can't choose the first model itself.

    >>> gateway_environment({"TURNKEEPER_API_PORT": "80", "turnkeeper_openai_chat__api_key": "k", "MY_KEY": "k"})
    {'TURNKEEPER_API_PORT': '80'}
    """
    return {name: value for name, value in variables.items() if _is_for_gateway(name)}


def _is_for_gateway(name: str) -> bool:
    # Names of settings are case-insensitive.
    if name.upper().startswith(_KEY_SETTINGS):
        return False
    return name in _GATEWAY or name.upper().startswith(_GATEWAY_PREFIXES)
