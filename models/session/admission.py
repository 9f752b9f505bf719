"""What a session refuses prompts with: read off the session, which records it (SES-5, SES-8, SES-15)."""

from typing import TYPE_CHECKING

from turnkeeper.models.errors import Refused

if TYPE_CHECKING:
    from turnkeeper.models.session.session_state import Session

_CLOSED = {"ended": "has ended", "cancelled": "was cancelled", "terminated": "was terminated"}


def check_open(session: "Session") -> None:
    """Raise `Refused` where a session takes no prompts any more, or none now."""
    if session.facts.ending is not None or session.closed:
        stands = _CLOSED.get(session.status, "is ending and takes no more prompts")
        raise Refused("ending", f"The session {stands} ({session.facts.ending or 'no reason given'}).")
    # While the archive takes turns, a full session only has to wait for it.
    if session.archive.is_failing and session.turn is None and session.room.is_full:
        raise refusal_of_full(session)


def refusal_now(session: "Session") -> Refused | None:
    """Return what any new prompt would be refused with now."""
    try:
        check_open(session)
        session.queue.check_count(session.config.limits)
    except Refused as refusal:
        return refusal
    return None


def refusal_of_full(session: "Session") -> Refused:
    """Return what prompts are refused with by a session that can hold no further turn."""
    trouble = session.archive.trouble
    why = f", and the archive takes none of it ({trouble})" if trouble else ""
    return Refused(
        "state_full",
        f"The session holds {session.transcript.carried_bytes:,} bytes of conversation{why}; "
        f"limits.max_state_bytes allows {session.config.limits.max_state_bytes:,} in all. It stays readable"
        + (", and goes on when the archive works again." if why else "."),
    )


def refusal_of_uncarriable(session: "Session") -> Refused:
    """Return what waiting prompts are rejected with that the next run can't be handed."""
    return Refused(
        "state_full",
        "More prompts wait than can be handed over to the session's next run, and the archive takes none of them "
        f"({session.archive.trouble or 'it gave no reason'}).",
    )
