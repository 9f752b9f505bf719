"""What room a session has: all that it holds is carried to its next run, under `limits.max_state_bytes` (SES-15).

Recorded runs have decided by these numbers: they are counted the same for ever.
"""

from typing import TYPE_CHECKING

from turnkeeper.models.session.session import SessionInput

if TYPE_CHECKING:
    from turnkeeper.models.session.session_state import Session

ENVELOPE_BYTES = 2_048
"""What is carried beside all that is counted: numbers, times, names of fields."""


class Room:
    """The room that is left in a session, in JSON bytes."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._measured_config: tuple[SessionInput, int] | None = None

    @property
    def is_full(self) -> bool:
        """The session can hold no further turn: it could no longer be carried to the next run."""
        return self.for_turn < self._session.config.limits.least_turn_bytes

    @property
    def for_turn(self) -> int:
        """What there is for a turn, so that everything together can be carried."""
        session = self._session
        return session.config.limits.max_state_bytes - self._fixed_bytes() - session.transcript.carried_bytes

    @property
    def turn_cap(self) -> int:
        """The most that a turn may take: it leaves room for the next one, which it cannot make way for.

        The limits are those of the running turn, if there is one: a later configuration is for the next (SES-8).
        """
        turn = self._session.turn
        limits = turn.limits if turn else self._session.config.limits
        beside = max(self._session.transcript.carried_bytes, limits.least_turn_bytes)
        return min(limits.turn_bytes, limits.max_state_bytes - self._fixed_bytes() - beside)

    @property
    def is_queue_carriable(self) -> bool:
        """All that waits, and all fates that must not be lost, can be handed over to the next run (SES-14)."""
        session, limits = self._session, self._session.config.limits
        if session.rules < 2:
            return True
        leaving = session.queue.leaving
        # While the archive takes nothing, rejections give way.
        unstored = leaving.accepted_bytes if session.archive.is_failing else leaving.bytes
        return session.queue.row.fits(limits) and unstored <= limits.leaving_bytes

    def _fixed_bytes(self) -> int:
        """Count what is carried beside the turns; the queue counts as if it were full."""
        session = self._session
        queue = session.queue.carried_bytes(session.config.limits)
        return (
            ENVELOPE_BYTES + self._config_bytes() + session.tools.carried_bytes + session.context.carried_bytes + queue
        ) + session.tasks.carried_bytes

    def _config_bytes(self) -> int:
        """Return the JSON bytes of the configuration; measured when it has changed."""
        config = self._session.config
        if self._measured_config is None or self._measured_config[0] is not config:
            self._measured_config = (config, config.counted_bytes)
        return self._measured_config[1]
