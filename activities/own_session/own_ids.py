"""Whose work an activity does: it knows its session and its run by itself (docs/decisions/0002)."""

from temporalio import activity


def own_session() -> str:
    """Return the id of the session that this activity runs for."""
    return activity.info().workflow_id or ""


def own_run() -> str:
    """Return the id of the run that this activity runs for."""
    return activity.info().workflow_run_id or ""
