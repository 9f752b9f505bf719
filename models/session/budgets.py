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

A session may have a share of what another one's turn may use, in place of limits of its own (TSK-5).
"""

from dataclasses import dataclass
from typing import NoReturn

from pydantic import Field

from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.ids import PublicId
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.conversation import COST_DIGITS, Usage, dollars
from turnkeeper.models.wire import Compact, Frozen

MAX_AMOUNT = 2**53
"""More than any turn uses; JSON readers have it exactly."""


class Amount(Compact):
    """Tokens, and cost in US dollars."""

    tokens: int = Field(0, ge=0, le=MAX_AMOUNT)
    cost: float = Field(0.0, ge=0, le=MAX_AMOUNT)

    @classmethod
    def of(cls, usage: Usage | None) -> "Amount":
        return cls(tokens=max(0, usage.tokens), cost=max(0.0, usage.cost or 0.0)) if usage else cls()

    def __add__(self, other: "Amount") -> "Amount":
        # Not validated: a sum may be over the maximum.
        return Amount.model_construct(
            tokens=self.tokens + other.tokens, cost=round(self.cost + other.cost, COST_DIGITS)
        )


NOTHING = Amount()


class Caps(Frozen):
    """The most that a turn may use, with what it has others do; `None`: no limit."""

    tokens: int | None = None
    cost: float | None = None

    @classmethod
    def of(cls, limits: Limits) -> "Caps":
        tokens, cost = limits.max_tokens_per_turn, limits.max_cost_per_turn
        return cls(
            tokens=None if tokens is None else min(tokens, MAX_AMOUNT),
            cost=None if cost is None else min(cost, MAX_AMOUNT),
        )

    @property
    def are_set(self) -> bool:
        return self.tokens is not None or self.cost is not None

    def used_up_by(self, amount: Amount) -> str | None:
        """Return the name of the limit that is used up by `amount`; `None`: something of everything is left."""
        if self.tokens is not None and amount.tokens >= self.tokens:
            return "max_tokens_per_turn"
        return "max_cost_per_turn" if self.cost is not None and amount.cost >= self.cost else None

    def words(self, limit: str) -> str:
        """Return the value of a limit for people."""
        return f"{self.tokens:,} tokens" if limit == "max_tokens_per_turn" else dollars(self.cost or 0.0)


@dataclass(frozen=True)
class Share:
    """A session's share of what a turn of the session `owner` and others may use together, at most `caps`.

    The session has `granted` of it, and has `used` some, in all of its turns.
    """

    owner: PublicId
    caps: Caps
    granted: Caps
    used: Amount

    @property
    def used_up(self) -> str | None:
        """The name of the limit of which nothing is left; `None`: something of everything is left."""
        return self.granted.used_up_by(self.used)


@dataclass(frozen=True)
class Budgets:
    """The budgets of a turn under `limits`, after it has `spent` some; `model` is for messages.

    `drawn` is what its tasks may use of them. A task has a `share` of its root's budgets.
    """

    limits: Limits
    model: str
    spent: Usage
    drawn: Amount = NOTHING
    share: Share | None = None

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
        if self.share and (limit_name := self.share.used_up):
            _fail_without_share(self.share, limit_name)

    def check_step(self, usage: Usage | None) -> None:
        """Raise `TurnFailedError` if a limit is passed, or can't be checked, after the newest step.

        `usage` is that of the answer alone, without earlier attempts at it.
        """
        self.check_spent()
        for caps in (Caps.of(self.limits), *([self.share.caps] if self.share else [])):
            if caps.tokens is not None and usage is None:
                self._fail_unkeepable("max_tokens_per_turn", f"{caps.tokens:,}", usage)
            if caps.cost is not None and (usage is None or usage.cost is None):
                self._fail_unkeepable("max_cost_per_turn", dollars(caps.cost), usage)

    def remaining(self) -> dict[str, int | float]:
        """Return the rest of the limited budgets, by their names in `ModelCall`."""
        spent, own = Amount.of(self.spent) + self.drawn, Caps.of(self.limits)
        pairs = [(own, spent), *([(self.share.granted, self.share.used)] if self.share else [])]
        tokens = [caps.tokens - used.tokens for caps, used in pairs if caps.tokens is not None]
        costs = [caps.cost - used.cost for caps, used in pairs if caps.cost is not None]
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

    def _fail_unkeepable(self, limit: str, value: str, usage: Usage | None) -> NoReturn:
        if usage is None:
            why, remedy = f"{self.model} does not say how many tokens it used", "choose another model"
        else:
            why = f"The price of {self.model} is not known"
            remedy = "choose another model, install turnkeeper[prices] where the worker runs if it is missing"
        cannot = f"{why}, so limits.{limit}, which is {value}, cannot be kept"
        fail("budget", f"{cannot}: {remedy}, or lift the limit {_where(limit, 'null')}")


def _fail_without_share(share: Share, limit: str) -> NoReturn:
    """Raise `TurnFailedError`: nothing is left of what the session may use of another one's budget."""
    used = f"{share.used.tokens:,} tokens" if limit == "max_tokens_per_turn" else dollars(share.used.cost)
    tree = f"a turn of session {share.owner} and its tasks may use (limits.{limit})"
    change = _where(limit, "N", since="for the tasks that later turns start").replace("{id}", share.owner)
    fail(
        "budget",
        f"The task used {used} and is not done, and none are left of the {share.caps.words(limit)} that {tree}. "
        f"The tasks of that turn keep this limit. Raise it {change}",
    )


def _fail_over(used: str, limit: str, value: str, error_type: ErrorType = "budget") -> NoReturn:
    """Raise `TurnFailedError` with what the turn used, the limit, and how to raise it."""
    fail(error_type, f"{used} and is not done, and limits.{limit} is {value}: raise it {_where(limit, 'N')}")


def _where(limit: str, value: str, *, since: str = "from the next turn on") -> str:
    change = f'{{"limits": {{"{limit}": {value}}}}}'
    return (
        f"{since} by the update `configure`, PATCH /workflow/{{id}}, with {change}, "
        f"and for new sessions by the setting limits.{limit}."
    )
