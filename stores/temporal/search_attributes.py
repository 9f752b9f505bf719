"""The search attributes of sessions (SES-17). Temporal stores them as plain text: they never have content."""

import re
from typing import Literal
from urllib.parse import quote, unquote

from temporalio.common import SearchAttributeKey

CoarseStatus = Literal["open", "awaiting_approval", "ended"]

SESSION_STATUS = SearchAttributeKey.for_keyword("AgentSessionStatus")
USER = SearchAttributeKey.for_keyword("AgentUser")
MODEL = SearchAttributeKey.for_keyword("AgentModel")
TURNS = SearchAttributeKey.for_int("AgentTurns")

TASK_PARENT = SearchAttributeKey.for_keyword("AgentTaskParent")
"""The session that started a task, or `NO_PARENT`. Other sessions have no value."""

TENANT = SearchAttributeKey.for_keyword("AgentTenant")
"""The tenant that the session belongs to. Sessions of the default tenant have no value (API-4)."""

ALL = (SESSION_STATUS, USER, MODEL, TURNS, TASK_PARENT, TENANT)
"""Registered at start-up."""


def encoded_user(user: str) -> str:
    """Return a user's name as the value of `AgentUser`, safe in a visibility filter (API-4).

    Quotes are percent-encoded: a doubled quote could end a value in Temporal's filters.

    >>> encoded_user("Miles O'Brien"), decoded_user("Miles O%27Brien"), encoded_user("Zoë Müller")
    ('Miles O%27Brien', "Miles O'Brien", 'Zoë Müller')
    """
    return re.sub(r"[^\w .@+~-]", lambda match: quote(match[0], safe=""), user)


def decoded_user(attribute: str | None) -> str | None:
    """Return the user's name from a value of `AgentUser`."""
    return None if attribute is None else unquote(attribute)
