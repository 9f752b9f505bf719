"""The search attributes, memo and summary that every session is started with, by a gateway or by another session."""

from datetime import datetime
from typing import Any

from temporalio.common import SearchAttributePair, TypedSearchAttributes

from turnkeeper.models.bounds import head_within
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.stores.temporal import search_attributes

MAX_SUMMARY_BYTES = 200
"""The maximum that Temporal accepts as a workflow's summary."""


def initial_attributes(start: SessionInput, *, tenant: str, parent: str | None = None) -> TypedSearchAttributes:
    """Return them; `parent` is that of a task, or `NO_PARENT`."""
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(search_attributes.SESSION_STATUS, "open"),
        SearchAttributePair(search_attributes.MODEL, start.model),
        SearchAttributePair(search_attributes.TURNS, 0),
    ]
    if start.user:
        pairs.append(SearchAttributePair(search_attributes.USER, search_attributes.encoded_user(start.user)))
    if parent:
        pairs.append(SearchAttributePair(search_attributes.TASK_PARENT, parent))
    if tenant:
        pairs.append(SearchAttributePair(search_attributes.TENANT, tenant))
    return TypedSearchAttributes(pairs)


def initial_memo(start: SessionInput, *, now: datetime) -> dict[str, Any]:
    return {"title": start.title, "user": start.user, "created_at": now.isoformat()}


def initial_summary(start: SessionInput) -> str | None:
    return start.title and head_within(start.title, MAX_SUMMARY_BYTES)
