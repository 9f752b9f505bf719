"""Ids of sessions, prompts and tool calls (SES-6): safe in URLs, in file names and in Temporal's visibility filters."""

import re

ID_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"
CALL_ID_PATTERN = r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$"
_ID = re.compile(ID_PATTERN[1:-1])

ID_RULE = "1 to 128 letters, digits or . _ ~ -"


def is_id(value: object) -> bool:
    r"""Return whether `value` is a valid id of a session or a prompt.

    >>> is_id("a-1"), is_id(""), is_id("a/b"), is_id("a\n"), is_id(7)
    (True, False, False, False, False)
    """
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def call_id(turn: int, step: int, index: int) -> str:
    """Return our id of a tool call, unique in its session; turns and steps count from 1, calls from 0 (SES-6).

    >>> call_id(3, 2, 0)
    '3.2.0'
    """
    return f"{turn}.{step}.{index}"


def tenant_of(workflow_id: str) -> str:
    """Return the tenant that a session's workflow id belongs to; empty: the default one (API-4).

    >>> tenant_of("chat-1"), tenant_of("acme:chat-1")
    ('', 'acme')
    """
    return workflow_id.rpartition(":")[0]


def session_id_of(workflow_id: str) -> str:
    """Return a session's id without its tenant.

    >>> session_id_of("chat-1"), session_id_of("acme:chat-1")
    ('chat-1', 'chat-1')
    """
    return workflow_id.rpartition(":")[2]
