"""What a tree of tasks may use: the rules alone, whatever becomes of their signals (TSK-5)."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.features.tasks.session.allowance import (
    Accounts,
    Allowance,
    AllowanceAnswer,
    AllowanceRequest,
    AllowanceState,
    TaskAllowance,
)
from turnkeeper.models.ids import PublicId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.budgets import MAX_AMOUNT, NOTHING, Amount, Caps

TURN = "m1"
TASKS = [PublicId(f"root.task-{number}") for number in (1, 2, 3)]
CAPS = Caps(tokens=1_000, cost=1.0)
LIMITS = Limits(max_tokens_per_turn=CAPS.tokens, max_cost_per_turn=CAPS.cost, max_tasks=4)


def amount(tokens: int) -> Amount:
    return Amount(tokens=tokens, cost=tokens / 1_000)


@dataclass
class Task:
    """A task of the tree. It begins no step unless something of its portion is left."""

    allowance: Allowance
    used: Amount = NOTHING
    overdrawn: Amount = NOTHING
    """What its steps have used beyond its portion."""
    starts: list[int] = field(default_factory=list)

    def step(self, tokens: int) -> None:
        if self.allowance.used_up(self.used):
            return
        self.used = self.used + amount(tokens)
        self.overdrawn = amount(max(0, self.used.tokens - self.allowance.state.granted.tokens, self.overdrawn.tokens))


def start(
    root: Accounts, task_id: PublicId, *, turn: str = TURN, limits: Limits = LIMITS, max_tasks: int
) -> AllowanceAnswer:
    return root.start(task_id, turn=turn, caps=Caps.of(limits), used=NOTHING, max_tasks=max_tasks)


class Tree:
    """A root with three tasks, and the signals between them, which arrive in any order, or twice."""

    def __init__(self) -> None:
        self.root = Accounts([], session_id="root")
        self.tasks: dict[PublicId, Task] = {}
        self.requests: list[AllowanceRequest] = []
        self.answers: list[tuple[PublicId, AllowanceAnswer]] = []
        for task_id in TASKS:
            portion = start(self.root, task_id, max_tasks=LIMITS.max_tasks).granted
            allowance = TaskAllowance(root=PublicId("root"), caps=CAPS, portion=portion)
            self.tasks[task_id] = Task(Allowance(allowance, None, task_id=task_id))

    def act(self, action: str, task_id: PublicId, number: int) -> None:
        task = self.tasks[task_id]
        allowance = task.allowance
        if action == "step":
            task.step(number)
        elif action == "ask":
            allowance.ask(task.used, need=amount(number))
        elif action == "return":
            allowance.return_rest(task.used)
        elif action == "start":
            task.starts.append(allowance.ask_to_start(PublicId(f"{task_id}.task-{number % 3}")))
        elif action == "void":
            allowance.void_start(PublicId(f"{task_id}.task-{number % 3}"))
        elif action == "continue as new":
            carried = AllowanceState.model_validate_json(allowance.state.model_dump_json())
            outbox = allowance.outbox
            task.allowance = Allowance(allowance.start, carried, task_id=task_id)
            task.allowance.outbox = outbox
        self.requests += task.allowance.outbox
        task.allowance.outbox.clear()

    def deliver(self, number: int, *, again: bool) -> None:
        """Deliver any pending signal; it stays pending if it is to arrive `again`."""
        pending = len(self.requests) + len(self.answers)
        if not pending:
            return
        index = number % pending
        if index < len(self.requests):
            request = self.requests[index] if again else self.requests.pop(index)
            answer = self.root.answer(request, max_tasks=LIMITS.max_tasks)
            if answer:
                self.answers.append((request.task_id, answer))
        else:
            index -= len(self.requests)
            task_id, answer = self.answers[index] if again else self.answers.pop(index)
            self.tasks[task_id].allowance.receive(answer)

    def check(self) -> None:
        account = self.root.state[0]
        overdrawn = sum((task.overdrawn for task in self.tasks.values()), NOTHING)
        assert account.drawn.tokens <= 1_000 + overdrawn.tokens
        assert self.root.task_count <= LIMITS.max_tasks
        for task_id, task in self.tasks.items():
            portion = account.portions.get(task_id)
            assert portion is not None
            assert task.allowance.state.granted.tokens <= max(portion.granted.tokens, task.used.tokens)


ACTIONS = st.tuples(
    st.sampled_from(["step", "ask", "return", "start", "void", "continue as new", "deliver", "deliver", "repeat"]),
    st.sampled_from(TASKS),
    st.integers(0, 400),
)


@given(st.lists(ACTIONS, max_size=60))
def test_tsk_5_no_order_or_repetition_of_signals_grants_more_than_the_cap(
    actions: list[tuple[str, PublicId, int]],
) -> None:
    tree = Tree()
    for action, task_id, number in actions:
        if action in ("deliver", "repeat"):
            tree.deliver(number, again=action == "repeat")
        else:
            tree.act(action, task_id, number)
        tree.check()


@given(st.lists(ACTIONS, max_size=40))
def test_tsk_5_whatever_is_not_used_comes_back_when_the_turns_end(actions: list[tuple[str, PublicId, int]]) -> None:
    tree = Tree()
    for action, task_id, number in actions:
        if action in ("deliver", "repeat"):
            tree.deliver(number, again=action == "repeat")
        else:
            tree.act(action, task_id, number)
    for task_id in TASKS:
        tree.act("return", task_id, 0)
        for number in range(3):
            tree.act("void", task_id, number)
    while tree.requests or tree.answers:
        tree.deliver(len(tree.requests) - 1, again=False)  # the newest first
    account = tree.root.state[0]
    assert account.drawn == sum((task.used for task in tree.tasks.values()), NOTHING)


def test_tsk_5_a_late_grant_for_a_turn_that_has_ended_is_returned() -> None:
    tree = Tree()
    task = tree.tasks[TASKS[0]]
    number = task.allowance.ask(NOTHING, need=amount(300))
    (request,) = task.allowance.outbox
    answer = tree.root.answer(request, max_tasks=4)
    assert answer is not None
    assert answer.granted == amount(300)
    task.allowance.return_rest(NOTHING)
    task.allowance.receive(answer)
    assert (task.allowance.state.granted, task.allowance.answer_to(number)) == (NOTHING, None)
    assert tree.root.answer(task.allowance.outbox[-1], max_tasks=4) is None
    portion = tree.root.state[0].portions.get(TASKS[0])
    assert portion is not None
    assert portion.granted == NOTHING


def test_tsk_5_a_task_without_a_cap_never_asks() -> None:
    allowance = Allowance(TaskAllowance(root=PublicId("root")), None, task_id=TASKS[0])
    assert not allowance.is_too_small(amount(10**9), need=amount(10**9))
    allowance.return_rest(amount(10**9))
    assert allowance.outbox == []


def test_tsk_5_a_task_that_was_not_started_does_not_count() -> None:
    root = Accounts([], session_id="root")
    assert start(root, TASKS[0], max_tasks=1).rejection is None
    assert start(root, TASKS[0], max_tasks=1).rejection is None, "the same start is one task"
    rejection = start(root, TASKS[1], max_tasks=1).rejection
    assert rejection == (
        "No task was started: nothing is left of the 1 task that session root may start in all, with those of its "
        "tasks (limits.max_tasks)."
    )
    root.void(TASKS[0])
    assert start(root, TASKS[1], max_tasks=1).rejection is None


def test_tsk_5_a_withdrawn_start_is_not_repeated_by_a_late_request() -> None:
    tree = Tree()
    allowance = tree.tasks[TASKS[0]].allowance
    below = PublicId(f"{TASKS[0]}.task-1")
    allowance.ask_to_start(below)
    allowance.void_start(below)
    start, void = allowance.outbox
    tree.root.answer(start, max_tasks=9)
    tree.root.answer(void, max_tasks=9)
    late = tree.root.answer(start, max_tasks=9)
    assert late is not None
    assert late.rejection == "No task was started: its start was withdrawn."
    assert tree.root.task_count == len(TASKS)


def test_tsk_5_turns_that_start_no_task_leave_nothing_behind() -> None:
    root = Accounts([], session_id="root")
    for task_id in TASKS:
        start(root, task_id, max_tasks=3)
    size = root.carried_bytes
    for number in range(2_000):
        turn, task_id = f"m{number}", PublicId(f"root.task-{number + 10}")
        max_tasks = 3 if number % 2 else 4
        if start(root, task_id, turn=turn, max_tasks=max_tasks).rejection is None:
            root.void(task_id)
        below = AllowanceRequest(task_id=TASKS[0], number=number + 1, starts=PublicId(f"{TASKS[0]}.task-{number}"))
        root.answer(below, max_tasks=4)
        root.answer(below.model_copy(update={"is_void": True}), max_tasks=4)
    assert root.task_count == len(TASKS)
    assert root.carried_bytes <= size + 20, "one number is remembered of the task"


def test_tsk_5_the_largest_amounts_fail_nothing() -> None:
    root = Accounts([], session_id="root")
    limits = Limits(max_tokens_per_turn=10**30, max_cost_per_turn=1e300)
    for task_id in TASKS:
        start(root, task_id, limits=limits, max_tasks=25)
    for number, task_id in enumerate(TASKS, start=1):
        most = {"tokens": MAX_AMOUNT, "cost": MAX_AMOUNT}
        request = AllowanceRequest.model_validate(
            {"task_id": task_id, "number": number, "used": most, "requested": {"tokens": MAX_AMOUNT}}
        )
        assert root.answer(request, max_tasks=25) is not None
    assert root.carried_bytes > 0
