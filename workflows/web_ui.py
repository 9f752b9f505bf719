"""A session in the Temporal Web UI and in lists of sessions: details, search attributes, title (SES-17)."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.session import Session
    from turnkeeper.workflows import search_attributes
    from turnkeeper.workflows.current_details import render_current_details


class WebUi:
    """The current details, search attributes and title of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._details_are_due = False

    def update(self) -> None:
        """Update the details, and the status if a decision is pending or no longer pending."""
        # Once per activation, which can have thousands of signals (SES-6).
        if not self._details_are_due:
            self._details_are_due = True
            asyncio.get_running_loop().call_soon(self._render)
        published = workflow.info().typed_search_attributes.get(search_attributes.SESSION_STATUS)
        if (self._session.status == "awaiting_approval") != (published == "awaiting_approval"):
            self.publish_open()

    def begin_run(self) -> None:
        """Write what the last run, or who started the session, has left out. Usually that is the number of turns."""
        self.publish_open(counts_turns=True)

    def publish_open(self, *, counts_turns: bool = False) -> None:
        self.publish(
            "awaiting_approval" if self._session.status == "awaiting_approval" else "open", counts_turns=counts_turns
        )

    def publish(self, status: search_attributes.CoarseStatus, *, counts_turns: bool = False) -> None:
        """Update the search attributes and the memo that have changed.

        That is twice for a decision, when title, user or model change, and at the end. The number of turns is written
        with these and when a run begins, since each write costs an action and an event: lists have their own index.
        """
        published, config = workflow.info().typed_search_attributes, self._session.config
        current: list[tuple[SearchAttributeKey[Any], Any]] = [
            (search_attributes.SESSION_STATUS, status),
            (search_attributes.USER, config.user and search_attributes.encoded_user(config.user)),
            (search_attributes.MODEL, config.model),
        ]
        changed = [key.value_set(value) for key, value in current if value is not None and published.get(key) != value]
        turn_count = self._session.transcript.count
        is_due = bool(changed) or counts_turns
        if is_due and published.get(search_attributes.TURNS) != turn_count:
            changed.append(search_attributes.TURNS.value_set(turn_count))
        if changed:
            workflow.upsert_search_attributes(changed)
        if workflow.memo_value("title", None) != config.title:
            workflow.upsert_memo({"title": config.title})

    def _render(self) -> None:
        self._details_are_due = False
        workflow.set_current_details(render_current_details(self._session))
