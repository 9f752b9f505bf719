"""Why a session takes no more prompts, and when it rejects waiting ones (SES-6, SES-8, SES-15)."""

from typing import TYPE_CHECKING

from turnkeeper.models.errors import RejectedError

if TYPE_CHECKING:
    from turnkeeper.models.session.session import Session

_CLOSED = {"ended": "has ended", "cancelled": "was cancelled", "terminated": "was terminated"}


def rejection_when_ending(session: "Session") -> RejectedError | None:
    """Return the rejection that any new prompt gets; `None` unless the session is ending or closed."""
    if session.facts.ending is None and not session.closed:
        return None
    state = _CLOSED.get(session.status, "is ending and takes no more prompts")
    return RejectedError("ending", f"The session {state} ({session.facts.ending or 'no reason given'}).")


def rejection_at_last(session: "Session") -> RejectedError:
    """Return the rejection of waiting prompts that Temporal's own limits leave no room for."""
    return RejectedError(
        "state_full",
        "The session holds more than can be handed over to its next run, and the archive takes none of it "
        f"({session.archive.current_error or 'it gave no reason'}). It continues when the archive works again.",
    )
