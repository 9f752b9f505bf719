"""What the Temporal Web UI shows of a session, and what lists of sessions know of it (SES-17)."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.workflows import search_attributes
    from turnkeeper.workflows.current_details import render_current_details


class WebUi:
    """The current details, search attributes and title of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._details_are_due = False

    def show(self) -> None:
        """Bring the details up to date, and the status too where people are asked to decide, or no longer."""
        # Once for all that happens at the same time: thousands of signals can be one activation (SES-6).
        if not self._details_are_due:
            self._details_are_due = True
            asyncio.get_running_loop().call_soon(self._render)
        known = workflow.info().typed_search_attributes.get(search_attributes.SESSION_STATUS)
        if self._session.awaits_approval != (known == "awaiting_approval"):
            self.publish_open()

    def publish_open(self) -> None:
        self.publish("awaiting_approval" if self._session.awaits_approval else "open")

    def publish(self, status: search_attributes.CoarseStatus) -> None:
        """Bring search attributes and memo up to date: only what changed.

        That is once a turn, twice more where people are asked to decide, and when the title or the model is changed.
        """
        known, config = workflow.info().typed_search_attributes, self._session.config
        current: list[tuple[SearchAttributeKey[Any], Any]] = [
            (search_attributes.SESSION_STATUS, status),
            (search_attributes.USER, config.user and search_attributes.encoded_user(config.user)),
            (search_attributes.MODEL, config.model),
            (search_attributes.TURNS, self._session.turn_count),
        ]
        changed = [key.value_set(value) for key, value in current if value is not None and known.get(key) != value]
        if changed:
            workflow.upsert_search_attributes(changed)
        if workflow.memo_value("title", None) != config.title:
            workflow.upsert_memo({"title": config.title})

    def _render(self) -> None:
        self._details_are_due = False
        workflow.set_current_details(render_current_details(self._session))
