"""What the tasks of a tree may use: tokens, cost and number are drawn from the tree's root (TSK-5).

A session that no other one has started by `run_task` is a root. It has an account for each of its turns that has
started tasks. The caps of the account are those of the turn. They bound everything that the turn, its tasks and the
tasks below these use together, also after the turn has ended. A task gets a portion with its start. It asks for more
before a step that needs more, and returns the rest when a turn of it ends. Every start is registered with the root,
which counts it.

Requests and answers are signals. All amounts in them are totals, each request has a number, and a portion only follows
the newest request, so a repeated or late signal never grants anything twice. Here are the rules; `AllowanceMail` sends
the signals. A task that is terminated returns nothing: its portion stays used.

An account without a portion is removed, and so is the portion of a task that was not started. So there are never more
accounts, or portions, than tasks that the tree may start, `limits.max_tasks`.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from turnkeeper.models.ids import ID_PATTERN, PublicId
from turnkeeper.models.session.budgets import NOTHING, Amount, Caps, Share
from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.conversation import COST_DIGITS
from turnkeeper.models.wire import Compact

SessionId = Annotated[PublicId, Field(pattern=ID_PATTERN)]

PORTIONS = 20
"""A grant is at least the cap divided by this number, if there is as much left: so a task asks about as often."""


class TaskAllowance(Compact):
    """Part of a task's input: the root of its tree, at which `depth` below it the task is, and the first portion."""

    root: PublicId
    depth: int = 1
    caps: Caps = Caps()
    portion: Amount = Amount()


class AllowanceRequest(Compact):
    """Argument of the signal `request_allowance`, from the task `task_id` to the root of its tree.

    `number` counts the requests of the task. It has used `used` in all, and asks for `requested` in all; without that,
    it returns the rest, and gets no answer. With `starts`, the request is about this task instead: whether the task may
    start it, or with `is_void`, that it was not started.
    """

    task_id: SessionId
    number: int
    used: Amount = Amount()
    requested: Amount | None = None
    starts: SessionId | None = None
    is_void: bool = False


class AllowanceAnswer(Compact):
    """Argument of the signal `grant_allowance`, from the root to the task that asked.

    `granted`: what the task may use in all; for a request to start one, the first portion of that. `rejection` is why
    it may not be started, as a sentence.
    """

    number: int
    granted: Amount = Amount()
    rejection: str | None = None


class Portion(Compact):
    """What a task has been granted and has not returned. `number` is that of its newest request for itself.

    `voided` is that of its newest word that a task was not started: a request to start one from before is stale.
    """

    granted: Amount = Amount()
    number: int = 0
    voided: int = 0


class TurnAccount(Compact):
    """The account of a root's turn. `used` is what the turn itself has used, without its tasks."""

    turn: str
    caps: Caps = Caps()
    used: Amount = Amount()
    portions: dict[PublicId, Portion] = {}
    """By the ids of the tasks that the turn, and the tasks below it, have started."""

    @property
    def drawn(self) -> Amount:
        """What the tasks of the turn may use, or have used where that is more."""
        return sum((portion.granted for portion in self.portions.values()), NOTHING)

    def with_portion(self, task_id: PublicId, portion: Portion | None) -> "TurnAccount":
        """Return the account with this portion of a task; `None`: with none."""
        others = {one: earlier for one, earlier in self.portions.items() if portion or one != task_id}
        return self.model_copy(update={"portions": {**others, task_id: portion} if portion else others})

    def grant(self, *, granted: Amount = NOTHING, used: Amount = NOTHING, requested: Amount = NOTHING) -> Amount:
        """Return what a task may use in all: what it wants, with a reserve, as far as there is room.

        It is never less than it was `granted` before: only the task itself gives back a part of its portion.
        """
        caps, drawn = self.caps, self.used + self.drawn
        tokens, cost = used.tokens, used.cost
        if caps.tokens is not None:
            goal = max(requested.tokens, used.tokens + caps.tokens // PORTIONS, used.tokens + 1)
            tokens = max(used.tokens, granted.tokens, min(goal, caps.tokens - drawn.tokens + granted.tokens))
        if caps.cost is not None:
            goal_cost = max(requested.cost, used.cost + caps.cost / PORTIONS)
            cost = max(used.cost, granted.cost, min(goal_cost, caps.cost - drawn.cost + granted.cost))
        return Amount(tokens=tokens, cost=round(cost, COST_DIGITS))


class Accounts:
    """The accounts of a root's turns; of a session that is no root, none."""

    def __init__(self, accounts: Sequence[TurnAccount], *, session_id: str) -> None:
        self._accounts = {account.turn: account for account in accounts}
        self.outbox: list[tuple[PublicId, AllowanceAnswer]] = []
        """Answers that are to be sent, in order, with the tasks that get them."""
        self._session_id = session_id

    @property
    def state(self) -> list[TurnAccount]:
        """What the next run gets."""
        return list(self._accounts.values())

    @property
    def carried_bytes(self) -> int:
        return len(to_json(self.state)) if self._accounts else 0

    @property
    def task_count(self) -> int:
        """Number of tasks that the tree has started."""
        return sum(len(account.portions) for account in self._accounts.values())

    def drawn(self, turn: str) -> Amount:
        """Return what the tasks of a turn have drawn from its budget."""
        return self._accounts[turn].drawn if turn in self._accounts else NOTHING

    def note_used(self, turn: str, used: Amount) -> None:
        """Note what a turn itself has used so far, if it has an account."""
        if account := self._accounts.get(turn):
            self._accounts[turn] = account.model_copy(update={"used": used})

    def start(
        self, task_id: PublicId, *, turn: str, caps: Caps, used: Amount, max_tasks: int, number: int = 0
    ) -> AllowanceAnswer:
        """Register a task of a turn that has `used` some itself; return its first portion, or why it may not start.

        A repetition gets the same portion.
        """
        account = self._accounts.get(turn) or TurnAccount(turn=turn, caps=caps)
        account = account.model_copy(update={"used": used})
        if task_id not in account.portions:
            if rejection := self._rejection(account, max_tasks):
                return AllowanceAnswer(number=number, rejection=rejection)
            account = account.with_portion(task_id, Portion(granted=account.grant()))
        self._accounts[turn] = account
        return AllowanceAnswer(number=number, granted=account.portions[task_id].granted)

    def _rejection(self, account: TurnAccount, max_tasks: int) -> str | None:
        limit = "max_tasks" if self.task_count >= max_tasks else account.caps.used_up_by(account.used + account.drawn)
        if limit is None:
            return None
        left_of = (
            f"{counted(max_tasks, 'task')} that session {self._session_id} may start in all, with those of its tasks"
        )
        if limit != "max_tasks":
            left_of = f"{account.caps.words(limit)} that a turn of session {self._session_id} and its tasks may use"
        return f"No task was started: nothing is left of the {left_of} (limits.{limit})."

    def void(self, task_id: PublicId) -> None:
        """Note that a task that this session has registered was not started."""
        if account := self._account_of(task_id):
            self._accounts[account.turn] = account.with_portion(task_id, None)
            self._accounts = {turn: account for turn, account in self._accounts.items() if account.portions}

    def answer(self, request: AllowanceRequest, *, max_tasks: int) -> AllowanceAnswer | None:
        """Apply a task's request, and return the answer; `None` if there is none, as for a task of no account."""
        account, task_id, number = self._account_of(request.task_id), request.task_id, request.number
        if account is None:
            return None
        portion = account.portions[task_id]
        if request.starts is None:
            return self._draw(account, portion, request)
        if request.is_void:
            account = account.with_portion(request.starts, None)
            if task_id in account.portions and number > portion.voided:
                account = account.with_portion(task_id, portion.model_copy(update={"voided": number}))
            self._accounts[account.turn] = account
            return None
        if number < portion.voided:
            return AllowanceAnswer(number=number, rejection="No task was started: its start was withdrawn.")
        turn, caps, used = account.turn, account.caps, account.used
        return self.start(request.starts, turn=turn, caps=caps, used=used, max_tasks=max_tasks, number=number)

    def _draw(self, account: TurnAccount, portion: Portion, request: AllowanceRequest) -> AllowanceAnswer | None:
        """Grant a task more, or take the rest back. A stale request changes nothing."""
        if request.number > portion.number:
            granted = request.used
            if request.requested is not None:
                granted = account.grant(granted=portion.granted, used=request.used, requested=request.requested)
            portion = portion.model_copy(update={"granted": granted, "number": request.number})
            self._accounts[account.turn] = account.with_portion(request.task_id, portion)
        is_answered = request.requested is not None and request.number == portion.number
        return AllowanceAnswer(number=request.number, granted=portion.granted) if is_answered else None

    def _account_of(self, task_id: PublicId) -> TurnAccount | None:
        return next((account for account in self._accounts.values() if task_id in account.portions), None)


class AllowanceState(Compact):
    """The carried state of a task's allowance.

    `number` is that of its newest request, `asking` that of the one for a portion that has no answer yet; 0: none.
    """

    granted: Amount
    number: int = 0
    asking: int = 0


class Allowance:
    """What a task may use, and its requests to the root. Amounts `used` are totals of the task, without its tasks."""

    def __init__(self, start: TaskAllowance, state: AllowanceState | None, *, task_id: PublicId) -> None:
        self.start = start
        self.state = state or AllowanceState(granted=start.portion)
        """The state that the next run gets; replaced with every change."""
        self.outbox: list[AllowanceRequest] = []
        """Requests to be sent, in order."""
        self.is_root_gone = False
        """Whether a request could not be delivered, because the root has ended."""
        self._task_id = task_id
        self._answers: dict[int, AllowanceAnswer | None] = {}
        """The answers to requests that the turn waits for; `None`: not yet."""

    def share(self, used: Amount) -> Share:
        """Return the task's share of what its tree may use, of which it has `used` some."""
        caps, granted = self.start.caps, self.state.granted
        tokens = None if caps.tokens is None else granted.tokens
        cost = None if caps.cost is None else granted.cost
        return Share(self.start.root, caps, granted=Caps(tokens=tokens, cost=cost), used=used)

    def used_up(self, used: Amount) -> str | None:
        """Return the name of the limit of which nothing is left; `None`: something of everything is left."""
        return self.share(used).used_up

    def is_too_small(self, used: Amount, *, need: Amount) -> bool:
        """Return whether the portion is too small for a step that needs about `need`."""
        caps, granted = self.start.caps, self.state.granted
        if self.used_up(used):
            return True
        return (caps.tokens is not None and granted.tokens < used.tokens + need.tokens) or (
            caps.cost is not None and granted.cost < used.cost + need.cost
        )

    def ask(self, used: Amount, *, need: Amount) -> int:
        """Ask the root for a portion of at least `need`; return the number of the request."""
        number = self._send(used=used, requested=used + need)
        self._answers[number] = None
        self._replace(asking=number)
        return number

    def ask_to_start(self, task_id: PublicId) -> int:
        """Ask the root whether this task may start another one; return the number of the request."""
        number = self._send(starts=task_id)
        self._answers[number] = None
        return number

    def void_start(self, task_id: PublicId) -> None:
        """Tell the root that a task was not started, also if its answer is still to come."""
        self._send(starts=task_id, is_void=True)

    def return_rest(self, used: Amount) -> None:
        """Return what is left of the portion, also of one that is still to come, and report what was used beyond it."""
        self._answers = {number: answer for number, answer in self._answers.items() if answer}
        if self.start.caps.are_set and (self.state.asking or self.state.granted != used):
            self._send(used=used)
            self._replace(granted=used, asking=0)

    def answer_to(self, number: int) -> AllowanceAnswer | None:
        """Return the answer to a request; `None`: there is none yet."""
        return self._answers.get(number)

    def forget(self, number: int) -> None:
        """Forget a request whose answer was read, or is no longer waited for."""
        self._answers.pop(number, None)

    def receive(self, answer: AllowanceAnswer) -> None:
        """Accept an answer of the root. One that comes too late or twice changes nothing."""
        if self._answers.get(answer.number, answer) is not None:
            return
        self._answers[answer.number] = answer
        if answer.number == self.state.asking:
            self._replace(granted=answer.granted, asking=0)

    def _send(self, **fields: object) -> int:
        number = self.state.number + 1
        self._replace(number=number)
        self.outbox.append(AllowanceRequest.model_validate({"task_id": self._task_id, "number": number, **fields}))
        return number

    def _replace(self, **fields: object) -> None:
        self.state = self.state.model_copy(update=fields)
