"""Budgets of a turn, and the errors that end a turn over budget (AGT-1).

Each budget is a limit of the session, as configured when the turn began (SES-8). It is checked before the turn would
use more of it:

    steps          before a further one                               `max_steps`
    tool calls     before those of a step are run                     `max_tool_calls`
    tokens, cost   then too, and before the model is asked again      `max_tokens_per_turn`, `max_cost_per_turn`
    time           wherever the turn waits                            `turn_timeout`

So an answer that goes over budget is still returned: it is paid for. Tokens and cost include all model calls of the
turn in all its runs, summaries, failed attempts, by the vendor's count or an estimate, and what its tasks have drawn.
If failed attempts use up the budget, the call fails. If usage or price is unknown, a limit can't be checked; the turn
then ends as if it were reached, since it must not be passed unnoticed.

The turn of a task has the portion that the root of its tree has granted, in place of limits of its own (TSK-5).
"""

from dataclasses import dataclass
from typing import NoReturn

from turnkeeper.features.tasks.session.allowance import NOTHING, Allowance, Amount, Caps
from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.trajectory import COST_DIGITS, Usage, dollars


@dataclass(frozen=True)
class Budgets:
    """The budgets of a turn under `limits`, after it has `spent` some; `model` is for messages.

    `drawn` is what its tasks may use of them. A task also has an `allowance`, of which it has used `used` in all turns.
    """

    limits: Limits
    model: str
    spent: Usage
    drawn: Amount = NOTHING
    allowance: Allowance | None = None
    used: Amount = NOTHING

    def check_next_step(self, steps: int) -> None:
        """Raise `TurnFailedError` if the turn has used all its `steps`."""
        if steps >= self.limits.max_steps:
            _fail_over(f"The turn took {steps:,} steps", "max_steps", f"{self.limits.max_steps:,}", "max_steps")

    def check_calls(self, calls: int) -> None:
        """Raise `TurnFailedError` if the turn has too many tool calls, with those of its newest step."""
        if calls > self.limits.max_tool_calls:
            _fail_over(f"The turn asked for {calls:,} tool calls", "max_tool_calls", f"{self.limits.max_tool_calls:,}")

    def check_spent(self) -> None:
        """Raise `TurnFailedError` if the turn has spent more tokens or money than allowed."""
        spent, drawn, limits = Amount.of(self.spent) + self.drawn, self.drawn, self.limits
        if limits.max_tokens_per_turn is not None and spent.tokens > limits.max_tokens_per_turn:
            of_tasks = f", {drawn.tokens:,} of them for its tasks," if drawn.tokens else ""
            limit = f"{limits.max_tokens_per_turn:,}"
            _fail_over(f"The turn used {spent.tokens:,} tokens{of_tasks}", "max_tokens_per_turn", limit)
        if limits.max_cost_per_turn is not None and spent.cost > limits.max_cost_per_turn:
            of_tasks = f", {dollars(drawn.cost)} of it for its tasks," if drawn.cost else ""
            limit = dollars(limits.max_cost_per_turn)
            _fail_over(f"The turn cost {dollars(spent.cost)}{of_tasks}", "max_cost_per_turn", limit)
        if self.allowance and (limit_name := self.allowance.used_up(self.used)):
            self._fail_without_allowance(self.allowance, limit_name)

    def check_step(self, usage: Usage | None) -> None:
        """Raise `TurnFailedError` if a limit is passed, or can't be checked, after the newest step.

        `usage` is that of the answer alone, without earlier attempts at it.
        """
        self.check_spent()
        for caps in (Caps.of(self.limits), *([self.allowance.start.caps] if self.allowance else [])):
            if caps.tokens is not None and usage is None:
                self._fail_unkeepable("max_tokens_per_turn", f"{caps.tokens:,}", usage)
            if caps.cost is not None and (usage is None or usage.cost is None):
                self._fail_unkeepable("max_cost_per_turn", dollars(caps.cost), usage)

    def remaining(self) -> dict[str, int | float]:
        """Return the rest of the limited budgets, by their names in `ModelCall`."""
        spent, own = Amount.of(self.spent) + self.drawn, Caps.of(self.limits)
        granted = self.allowance.granted if self.allowance else Caps()
        tokens = [
            cap - used
            for cap, used in ((own.tokens, spent.tokens), (granted.tokens, self.used.tokens))
            if cap is not None
        ]
        costs = [
            cap - used for cap, used in ((own.cost, spent.cost), (granted.cost, self.used.cost)) if cap is not None
        ]
        remaining: dict[str, int | float] = {}
        if tokens:
            remaining["tokens_left"] = max(0, min(tokens))
        if costs:
            remaining["cost_left"] = max(0.0, round(min(costs), COST_DIGITS))
        return remaining

    def fail_out_of_time(self, *, wait: float | None = None, reason: str = "") -> NoReturn:
        """Raise `TurnFailedError`: the turn's time is over, or would be after `wait` seconds.

        `reason` says, in a sentence, why the model is not asked earlier, or is asked again; empty: unknown.
        """
        used = f"{reason} The turn ran out of time".lstrip()
        if wait is not None:
            why = reason or f"{self.model} is not available now."
            used = f"{why} The turn would have to wait {round(wait, 1):,g} s until the model is asked again,"
        _fail_over(used, "turn_timeout", f"{self.limits.turn_timeout:,g} s")

    def _fail_without_allowance(self, allowance: Allowance, limit: str) -> NoReturn:
        """Raise `TurnFailedError`: nothing is left of what the tree may use."""
        start = allowance.start
        used = f"{self.used.tokens:,} tokens" if limit == "max_tokens_per_turn" else dollars(self.used.cost)
        tree = f"a turn of session {start.root} and its tasks may use (limits.{limit})"
        change = _where(limit, "N", since="for the tasks that later turns start").replace("{id}", start.root)
        fail(
            "budget",
            f"The task used {used} and is not done, and none are left of the {start.caps.words(limit)} that {tree}. "
            f"The tasks of that turn keep this limit. Raise it {change}",
        )

    def _fail_unkeepable(self, limit: str, value: str, usage: Usage | None) -> NoReturn:
        if usage is None:
            why, remedy = f"{self.model} does not say how many tokens it used", "choose another model"
        else:
            why = f"The price of {self.model} is not known"
            remedy = "choose another model, install turnkeeper[prices] where the worker runs if it is missing"
        cannot = f"{why}, so limits.{limit}, which is {value}, cannot be kept"
        fail("budget", f"{cannot}: {remedy}, or lift the limit {_where(limit, 'null')}")


def _fail_over(used: str, limit: str, value: str, error_type: ErrorType = "budget") -> NoReturn:
    """Raise `TurnFailedError` with what the turn used, the limit, and how to raise it."""
    fail(error_type, f"{used} and is not done, and limits.{limit} is {value}: raise it {_where(limit, 'N')}")


def _where(limit: str, value: str, *, since: str = "from the next turn on") -> str:
    change = f'{{"limits": {{"{limit}": {value}}}}}'
    return (
        f"{since} by the update `configure`, PATCH /workflow/{{id}}, with {change}, "
        f"and for new sessions by the setting limits.{limit}."
    )
