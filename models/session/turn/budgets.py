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

from dataclasses import dataclass
from typing import NoReturn

from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.trajectory import COST_DIGITS, Usage, dollars


@dataclass(frozen=True)
class Budgets:
    """The budgets of a turn that `model` answers, under `limits`, with what it has `spent` so far."""

    limits: Limits
    model: str
    spent: Usage

    def check_next_step(self, steps: int) -> None:
        """Raise `TurnFailed` where a turn that took `steps` may take no further one."""
        if steps >= self.limits.max_steps:
            _fail_over(f"The turn took {steps:,} steps", "max_steps", f"{self.limits.max_steps:,}", "max_steps")

    def check_calls(self, calls: int) -> None:
        """Raise `TurnFailed` where `calls`, the turn's tool calls with those that are asked for now, are too many."""
        if calls > self.limits.max_tool_calls:
            _fail_over(f"The turn asked for {calls:,} tool calls", "max_tool_calls", f"{self.limits.max_tool_calls:,}")

    def check_spent(self) -> None:
        """Raise `TurnFailed` where the turn has spent more than its limits of tokens and cost."""
        spent, limits = self.spent, self.limits
        if limits.max_tokens_per_turn is not None and spent.tokens > limits.max_tokens_per_turn:
            most = f"{limits.max_tokens_per_turn:,}"
            _fail_over(f"The turn used {spent.tokens:,} tokens", "max_tokens_per_turn", most)
        if limits.max_cost_per_turn is not None and (spent.cost or 0) > limits.max_cost_per_turn:
            most = dollars(limits.max_cost_per_turn)
            _fail_over(f"The turn cost {dollars(spent.cost or 0)}", "max_cost_per_turn", most)

    def check_step(self, usage: Usage | None) -> None:
        """Raise `TurnFailed` where the turn may not go on from its newest step: a limit is passed, or cannot be kept.

        `usage` is that of the answer alone: what is known of the attempts before it says nothing of the answer.
        """
        self.check_spent()
        limits = self.limits
        if limits.max_tokens_per_turn is not None and usage is None:
            self._fail_unkeepable("max_tokens_per_turn", f"{limits.max_tokens_per_turn:,}", usage)
        if limits.max_cost_per_turn is not None and (usage is None or usage.cost is None):
            self._fail_unkeepable("max_cost_per_turn", dollars(limits.max_cost_per_turn), usage)

    def remaining(self) -> dict[str, int | float]:
        """Return what the turn may still take of what is limited, by the names of `ModelCall`."""
        spent, limits = self.spent, self.limits
        remaining: dict[str, int | float] = {}
        if limits.max_tokens_per_turn is not None:
            remaining["tokens_left"] = max(0, limits.max_tokens_per_turn - spent.tokens)
        if limits.max_cost_per_turn is not None:
            remaining["cost_left"] = max(0.0, round(limits.max_cost_per_turn - (spent.cost or 0), COST_DIGITS))
        return remaining

    def fail_out_of_time(self, *, wait: float | None = None, reason: str = "") -> NoReturn:
        """Raise `TurnFailed`: the turn's time is over, or would be after `wait` seconds.

        `reason` is why the model is not asked before, as a whole sentence; empty: it is not known.
        """
        took = "The turn ran out of time"
        if wait is not None:
            why = reason or f"{self.model} is not available now."
            took = f"{why} The turn would have to wait {round(wait, 1):,g} s until the model is asked again,"
        _fail_over(took, "turn_timeout", f"{self.limits.turn_timeout:,g} s")

    def _fail_unkeepable(self, limit: str, most: str, usage: Usage | None) -> NoReturn:
        if usage is None:
            why, remedy = f"{self.model} does not say how many tokens it used", "choose another model"
        else:
            why = f"The price of {self.model} is not known"
            remedy = "choose another model, install turnkeeper[prices] where the worker runs if it is missing"
        cannot = f"{why}, so limits.{limit}, which is {most}, cannot be kept"
        fail("budget", f"{cannot}: {remedy}, or lift the limit {_where(limit, 'null')}")


def _fail_over(took: str, limit: str, most: str, error_type: ErrorType = "budget") -> NoReturn:
    """Say what the turn took, which limit ends it there, and how to raise that."""
    fail(error_type, f"{took} and is not done, and limits.{limit} is {most}: raise it {_where(limit, 'N')}")


def _where(limit: str, value: str) -> str:
    change = f'{{"limits": {{"{limit}": {value}}}}}'
    return (
        f"from the next turn on by the update `configure`, PATCH /workflow/{{id}}, with {change}, "
        f"and for new sessions by the setting limits.{limit}."
    )
