"""The room left in a session: its whole state is carried to the next run (SES-15).

`limits.max_state_bytes` is what the session aims at: it decides when turns, steps and prompts move to the archive, and
how large a turn may become. It rejects no prompt. Only what Temporal can't carry, `MAX_CARRIED_BYTES`, is a last bound.
"""

from typing import TYPE_CHECKING

from turnkeeper.models.session.messages import SessionInput

if TYPE_CHECKING:
    from turnkeeper.models.session.session import Session

ENVELOPE_BYTES = 2_048
"""Allowance for carried data that is not counted: numbers, times, field names."""

MAX_CARRIED_BYTES = 1_800_000
"""Maximum of the carried state: with 2 MB Temporal would repeat the continue-as-new for ever."""


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
        """Maximum size of a turn; it leaves room for the next one, and is never too small for its own prompt.

        It uses the limits of the running turn, if there is one: later configuration applies to the next turn (SES-8).
        """
        turn = self._session.turn
        limits = turn.limits if turn else self._session.config.limits
        beside = max(self._session.transcript.carried_bytes, limits.min_turn_bytes)
        cap = min(limits.turn_bytes, limits.max_state_bytes - self._fixed_bytes() - beside)
        return max(cap, limits.min_turn_bytes + (turn.prompt_bytes if turn else 0))

    @property
    def carried_bytes(self) -> int:
        """Size of the carried state as it is now."""
        session = self._session
        return self._bytes_beside_queue() + session.queue.carried_bytes + session.transcript.carried_bytes

    @property
    def is_carriable(self) -> bool:
        """Whether the next run can have the state without loss, and as many prompts as the limits allow (SES-14)."""
        session, limits = self._session, self._session.config.limits
        leaving = session.queue.leaving
        # While the archive is down, rejections may be dropped.
        unstored = leaving.accepted_bytes if session.archive.is_failing else leaving.bytes
        fits = session.queue.row.fits(limits) and unstored <= limits.leaving_bytes
        return fits and self.is_carriable_by_temporal

    @property
    def is_carriable_by_temporal(self) -> bool:
        return self.carried_bytes <= MAX_CARRIED_BYTES

    @property
    def is_carriable_at_last(self) -> bool:
        """Whether the next run can have the state at least without the waiting prompts."""
        return self._bytes_beside_queue() + self._session.transcript.carried_bytes <= MAX_CARRIED_BYTES

    def _fixed_bytes(self) -> int:
        """Return the size of the carried state without turns; the queue counts as full."""
        return self._bytes_beside_queue() + self._session.queue.reserved_bytes(self._session.config.limits)

    def _bytes_beside_queue(self) -> int:
        """Return the size of the carried state without turns and queue."""
        session = self._session
        tasks = session.own_task.carried_bytes + session.sub_tasks.carried_bytes + session.accounts.carried_bytes
        tools = session.tools.carried_bytes + session.refusals.carried_bytes
        return ENVELOPE_BYTES + self._config_bytes() + tasks + tools + session.context.carried_bytes

    def _config_bytes(self) -> int:
        """Return the JSON bytes of the configuration, cached until it changes."""
        config = self._session.config
        if self._measured_config is None or self._measured_config[0] is not config:
            self._measured_config = (config, len(config.model_dump_json().encode()))
        return self._measured_config[1]
