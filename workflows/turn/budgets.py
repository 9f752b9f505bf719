"""What a turn may take, and the sentence that ends one which would take more (AGT-1).

Every budget is a limit of the session, as it was when the turn began (SES-8), and is looked at where going on would
take more of it:

    steps          before a further one                               `max_steps`
    tool calls     before those of a step are run                     `max_tool_calls`
    tokens, cost   then too, and before the model is asked further    `max_tokens_per_turn`, `max_cost_per_turn`
    time           wherever the turn waits                            `turn_timeout`

So an answer that goes over is still the answer: it has been paid for. Tokens and cost are those of all model calls of
the turn, summaries too, in whatever run, and of attempts that failed, as the vendor counted or as is estimated: a call
is given up where they have used up what is left. A limit that cannot be kept,
since the vendor does not say what was used or the price is not known, ends the turn like one that is reached: it was
set so as not to be passed unnoticed.

Sessions from before tokens and cost had limits have none of them: nothing here decides anything in their histories.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import TurnFailed
    from turnkeeper.models.limits import Limits
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.models.transcript.trajectory import COST_DIGITS, Usage, dollars


class Budgets:
    """The budgets of the session's running turn."""

    def __init__(self, session: Session, *, limits: Limits, model: str) -> None:
        """Keep the turn that `model` answers within `limits`, which it began with."""
        self._session = session
        self._limits = limits
        self._model = model

    def out_of_steps(self, steps: int) -> TurnFailed:
        """Say that the turn has taken all its steps."""
        most = self._limits.max_steps
        return TurnFailed("max_steps", _reached(f"The turn took {steps:,} steps", "max_steps", f"{most:,}"))

    def out_of_time(self, *, wait: float | None = None, reason: str = "") -> TurnFailed:
        """Say that the turn's time is over, or would be after `wait` seconds.

        `reason` is why the model is not asked before, as a whole sentence; empty: it is not known.
        """
        took = "The turn ran out of time"
        if wait is not None:
            why = reason or f"{self._model} is not available now."
            took = f"{why} The turn would have to wait {round(wait, 1):,g} s until the model is asked again,"
        return TurnFailed("budget", _reached(took, "turn_timeout", f"{self._limits.turn_timeout:,g} s"))

    def check_calls(self, calls: int) -> None:
        """Pass so many tool calls, those that are asked for now included. Raises `TurnFailed` over the limit."""
        most = self._limits.max_tool_calls
        if calls > most:
            told = _reached(f"The turn asked for {calls:,} tool calls", "max_tool_calls", f"{most:,}")
            raise TurnFailed("budget", told)

    def check_spent(self) -> None:
        """Pass the tokens and the cost of the turn so far. Raises `TurnFailed` over a limit."""
        spent, limits = self._spent, self._limits
        if limits.max_tokens_per_turn is not None and spent.tokens > limits.max_tokens_per_turn:
            most = f"{limits.max_tokens_per_turn:,}"
            raise TurnFailed("budget", _reached(f"The turn used {spent.tokens:,} tokens", "max_tokens_per_turn", most))
        if limits.max_cost_per_turn is not None and (spent.cost or 0) > limits.max_cost_per_turn:
            took = f"The turn cost {dollars(spent.cost or 0)}"
            raise TurnFailed("budget", _reached(took, "max_cost_per_turn", dollars(limits.max_cost_per_turn)))

    def remaining(self) -> dict[str, int | float]:
        """Return what the turn may still take of what is limited, by the names of `ModelCall`."""
        spent, limits = self._spent, self._limits
        remaining: dict[str, int | float] = {}
        if limits.max_tokens_per_turn is not None:
            remaining["tokens_left"] = max(0, limits.max_tokens_per_turn - spent.tokens)
        if limits.max_cost_per_turn is not None:
            remaining["cost_left"] = max(0.0, round(limits.max_cost_per_turn - (spent.cost or 0), COST_DIGITS))
        return remaining

    def check_step(self, usage: Usage | None) -> None:
        """Pass the newest step, which asks for more. Raises `TurnFailed` over a limit, and where one can't be kept.

        `usage` is that of the answer alone: what is known of the attempts before it says nothing of the answer.
        """
        self.check_spent()
        limits = self._limits
        if limits.max_tokens_per_turn is not None and usage is None:
            raise self._unkeepable("max_tokens_per_turn", f"{limits.max_tokens_per_turn:,}", usage)
        if limits.max_cost_per_turn is not None and (usage is None or usage.cost is None):
            raise self._unkeepable("max_cost_per_turn", dollars(limits.max_cost_per_turn), usage)

    @property
    def _spent(self) -> Usage:
        turn = self._session.running_turn
        return (turn and turn.usage) or Usage()

    def _unkeepable(self, limit: str, most: str, usage: Usage | None) -> TurnFailed:
        if usage is None:
            why, mend = f"{self._model} does not say how many tokens it used", "choose another model"
        else:
            why = f"The price of {self._model} is not known"
            mend = "choose another model, install turnkeeper[prices] where the worker runs if it is missing"
        cannot = f"{why}, so limits.{limit}, which is {most}, cannot be kept"
        return TurnFailed("budget", f"{cannot}: {mend}, or lift the limit {_where(limit, 'null')}")


def _reached(took: str, limit: str, most: str) -> str:
    """Say what the turn took, which limit ends it there, and how to raise that."""
    return f"{took} and is not done, and limits.{limit} is {most}: raise it {_where(limit, 'N')}"


def _where(limit: str, value: str) -> str:
    change = f'{{"limits": {{"{limit}": {value}}}}}'
    return (
        f"from the next turn on by the update `configure`, PATCH /workflow/{{id}}, with {change}, "
        f"and for new sessions by the setting limits.{limit}."
    )
