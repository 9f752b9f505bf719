"""Ids of sessions, prompts and tool calls (SES-6): safe in URLs, in file names and in Temporal's visibility filters."""

import re

ID_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"
CALL_ID_PATTERN = r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$"
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"
_ID = re.compile(ID_PATTERN[1:-1])
_TENANT = re.compile(TENANT_PATTERN[1:-1])

DEFAULT_TENANT = ""

ID_RULE = "1 to 128 letters, digits or . _ ~ -"


def is_id(value: object) -> bool:
    r"""Return whether `value` is a valid id of a session or a prompt.

    >>> is_id("a-1"), is_id(""), is_id("a/b"), is_id("a\n"), is_id(7)
    (True, False, False, False, False)
    """
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def is_tenant(name: str) -> bool:
    r"""Return whether `name` is a valid tenant; the empty name is the default tenant.

    >>> is_tenant(""), is_tenant("acme-2"), is_tenant("Acme"), is_tenant("a' OR '"), is_tenant("a\n")
    (True, True, False, False, False)
    """
    return name == DEFAULT_TENANT or _TENANT.fullmatch(name) is not None


def call_id(turn: int, step: int, index: int) -> str:
    """Return our id of a tool call, unique in its session; turns and steps count from 1, calls from 0 (SES-6).

    >>> call_id(3, 2, 0)
    '3.2.0'
    """
    return f"{turn}.{step}.{index}"
