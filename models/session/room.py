"""The room left in a session: its whole state must fit in `limits.max_state_bytes` for the next run (SES-15).

Recorded runs made decisions by these numbers, so their computation can't change.
"""

from typing import TYPE_CHECKING

from turnkeeper.models.session.messages import SessionInput

if TYPE_CHECKING:
    from turnkeeper.models.session.session import Session

ENVELOPE_BYTES = 2_048
"""Allowance for carried data that is not counted: numbers, times, field names."""


class Room:
    """The room that is left in a session, in JSON bytes."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._measured_config: tuple[SessionInput, int] | None = None

    @property
    def is_full(self) -> bool:
        """Whether another turn would make the session too large to carry to the next run."""
        return self.for_turn < self._session.config.limits.min_turn_bytes

    @property
    def for_turn(self) -> int:
        """Room for a turn, such that everything together can be carried."""
        session = self._session
        return session.config.limits.max_state_bytes - self._fixed_bytes() - session.transcript.carried_bytes

    @property
    def turn_cap(self) -> int:
        """Maximum size of a turn; it leaves room for the next one.

        It uses the limits of the running turn, if there is one: later configuration applies to the next turn (SES-8).
        """
        turn = self._session.turn
        limits = turn.limits if turn else self._session.config.limits
        beside = max(self._session.transcript.carried_bytes, limits.min_turn_bytes)
        return min(limits.turn_bytes, limits.max_state_bytes - self._fixed_bytes() - beside)

    @property
    def is_queue_carriable(self) -> bool:
        """Whether all waiting prompts, and all fates that must not be lost, fit in the next run's input (SES-14)."""
        session, limits = self._session, self._session.config.limits
        leaving = session.queue.leaving
        # While the archive is down, rejections may be dropped.
        unstored = leaving.accepted_bytes if session.archive.is_failing else leaving.bytes
        return session.queue.row.fits(limits) and unstored <= limits.leaving_bytes

    def _fixed_bytes(self) -> int:
        """Return the size of the carried state without turns; the queue counts as full."""
        session = self._session
        queue = session.queue.carried_bytes(session.config.limits)
        tasks = session.own_task.carried_bytes + session.sub_tasks.carried_bytes + session.accounts.carried_bytes
        parts = session.tools.carried_bytes + session.context.carried_bytes + queue + tasks
        return ENVELOPE_BYTES + self._config_bytes() + parts

    def _config_bytes(self) -> int:
        """Return the JSON bytes of the configuration, cached until it changes."""
        config = self._session.config
        if self._measured_config is None or self._measured_config[0] is not config:
            self._measured_config = (config, config.counted_bytes)
        return self._measured_config[1]
