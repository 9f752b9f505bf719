"""Why a session rejects prompts (SES-5, SES-8, SES-15)."""

from typing import TYPE_CHECKING

from turnkeeper.models.errors import RejectedError

if TYPE_CHECKING:
    from turnkeeper.models.session.session import Session

_CLOSED = {"ended": "has ended", "cancelled": "was cancelled", "terminated": "was terminated"}


def check_open(session: "Session") -> None:
    """Raise `RejectedError` if the session accepts no prompts, for now or for ever."""
    if session.facts.ending is not None or session.closed:
        state = _CLOSED.get(session.status, "is ending and takes no more prompts")
        raise RejectedError("ending", f"The session {state} ({session.facts.ending or 'no reason given'}).")
    # While the archive works, a full session only has to wait for the next move.
    if session.archive.is_failing and session.turn is None and session.room.is_full:
        raise rejection_when_full(session)


def current_rejection(session: "Session") -> RejectedError | None:
    """Return the rejection that any new prompt would get now."""
    try:
        check_open(session)
        session.queue.check_count(session.config.limits)
    except RejectedError as rejection:
        return rejection
    return None


def rejection_when_full(session: "Session") -> RejectedError:
    """Return the rejection of prompts when a session has no room for another turn."""
    error = session.archive.current_error
    why = f", and the archive takes none of it ({error})" if error else ""
    return RejectedError(
        "state_full",
        f"The session holds {session.transcript.carried_bytes:,} bytes of conversation{why}; "
        f"limits.max_state_bytes allows {session.config.limits.max_state_bytes:,} in all. It stays readable"
        + (", and goes on when the archive works again." if why else "."),
    )


def rejection_when_uncarriable(session: "Session") -> RejectedError:
    """Return the rejection of waiting prompts that the next run can't carry."""
    return RejectedError(
        "state_full",
        "More prompts wait than can be handed over to the session's next run, and the archive takes none of them "
        f"({session.archive.current_error or 'it gave no reason'}).",
    )
