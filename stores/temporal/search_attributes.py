"""What Temporal lists of a session: its search attributes, and the memo and summary that it starts with (SES-17).

Temporal stores search attributes as plain text: they never have content.
"""

import re
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, unquote

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.texts import head_within

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


MAX_SUMMARY_BYTES = 200
"""The maximum that Temporal accepts as a workflow's summary."""


def initial_attributes(start: SessionInput, *, tenant: str, parent: str | None = None) -> TypedSearchAttributes:
    """Return them; `parent` is that of a task, or `NO_PARENT`."""
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(SESSION_STATUS, "open"),
        SearchAttributePair(MODEL, start.model),
        SearchAttributePair(TURNS, 0),
    ]
    if start.user:
        pairs.append(SearchAttributePair(USER, encoded_user(start.user)))
    if parent:
        pairs.append(SearchAttributePair(TASK_PARENT, parent))
    if tenant:
        pairs.append(SearchAttributePair(TENANT, tenant))
    return TypedSearchAttributes(pairs)


def initial_memo(start: SessionInput, *, now: datetime) -> dict[str, Any]:
    return {"title": start.title, "user": start.user, "created_at": now.isoformat()}


def initial_summary(start: SessionInput) -> str | None:
    return start.title and head_within(start.title, MAX_SUMMARY_BYTES)
