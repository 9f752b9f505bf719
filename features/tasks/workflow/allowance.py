"""What a tree of tasks may use: a task asks the root of its tree, by signal (AGT-1, TSK-5)."""

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.features.tasks.session.allowance import Allowance, AllowanceAnswer
    from turnkeeper.features.tasks.session_part import SessionTasks, tasks_of
    from turnkeeper.models.context.model_view import head_tokens
    from turnkeeper.models.errors import fail
    from turnkeeper.models.ids import PublicId
    from turnkeeper.models.session.turn.budgets import Amount
    from turnkeeper.models.wire import Frozen
    from turnkeeper.workflows.background import run_in_background
    from turnkeeper.workflows.turn.turn_scope import TurnScope

REQUEST, GRANT = "request_allowance", "grant_allowance"
"""Kinds of messages: of a task to its root, and the answer."""

ANSWER_TOKENS = 1_000
"""Tokens that a step is expected to need beyond its request."""


class TurnAllowance:
    """The tokens and cost that a turn may use, and the tasks that it may start.

    A root decides itself; a task asks, and waits for the answer as long as its turn has time.
    """

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session
        self._tasks = tasks_of(scope.session)

    async def start_of(self, task_id: PublicId) -> AllowanceAnswer:
        """Return the first portion of a task that this session starts, or why it may not be started."""
        allowance = self._tasks.allowance
        if allowance is None:
            return self._tasks.register_task(task_id)
        number = allowance.ask_to_start(task_id)
        fallback = AllowanceAnswer(number=number, rejection=f"No task was started: {_has_ended(allowance)}")
        return await self._answer(allowance, number) or fallback

    async def draw(self) -> None:
        """Ask the root for a larger portion if the present one is too small for the next step."""
        allowance, used = self._tasks.allowance, self._tasks.used
        need = self._need(used)
        if allowance is None or not allowance.is_too_small(used, need=need):
            return
        if await self._answer(allowance, allowance.ask(used, need=need)) is None and allowance.used_up(used):
            fail("budget", f"The task has used up its portion and can get no more: {_has_ended(allowance)}")

    async def _answer(self, allowance: Allowance, number: int) -> AllowanceAnswer | None:
        """Wait for the root's answer to a request; `None`: the root has ended."""
        self._scope.check_stop()
        try:
            await workflow.wait_condition(
                lambda: allowance.is_root_gone or allowance.answer_to(number) is not None,
                timeout=self._scope.time_left(),
                timeout_summary=f"allowance from {allowance.start.root}",
            )
        except TimeoutError:
            fail("budget", f"Session {allowance.start.root}, whose budget this task shares, gives no answer.")
        answer = allowance.answer_to(number)
        allowance.forget(number)
        self._scope.check_stop()
        return answer

    def _need(self, used: Amount) -> Amount:
        """Estimate what the next step needs: the request as it is now, at the price of the steps so far."""
        view = self._session.context.view
        tokens = head_tokens(self._session.head) + view.estimated_tokens + ANSWER_TOKENS
        return Amount(tokens=tokens, cost=used.cost * tokens / used.tokens if used.tokens else 0.0)


def _has_ended(allowance: Allowance) -> str:
    return f"session {allowance.start.root}, whose budget it shares, has ended."


class AllowanceMail:
    """Sends a session's requests to the root of its tree, or a root's answers.

    They are sent one after the other, in order, and beside the turn: so stopping a turn loses none. A session does not
    continue as new while one is to be sent.
    """

    def __init__(self, tasks: SessionTasks, send: Callable[[PublicId, str, Frozen], Awaitable[None]]) -> None:
        """`send` sends a message of a kind to the tasks of another session."""
        self._tasks = tasks
        self._send = send
        self._is_sending = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_sending(self) -> bool:
        """Whether anything is to be sent."""
        return self._is_sending or self._has_any()

    def begin(self) -> None:
        """Send everything from now on, until this run ends."""
        self._task = asyncio.create_task(run_in_background(self._run))

    async def flush(self) -> None:
        """Wait until everything is sent."""
        await workflow.wait_condition(lambda: not self.is_sending)

    def _has_any(self) -> bool:
        allowance = self._tasks.allowance
        return bool(self._tasks.accounts.outbox or (allowance and allowance.outbox))

    async def _run(self) -> None:
        accounts, allowance = self._tasks.accounts, self._tasks.allowance
        while True:
            await workflow.wait_condition(self._has_any)
            self._is_sending = True
            if accounts.outbox:
                task_id, answer = accounts.outbox.pop(0)
                try:
                    await self._send(task_id, GRANT, answer)
                except ApplicationError:  # Temporal reports an ended or unknown workflow as not found
                    workflow.logger.info("%s has ended before it got its allowance", task_id)
            elif allowance:
                try:
                    await self._send(allowance.start.root, REQUEST, allowance.outbox.pop(0))
                except ApplicationError:
                    allowance.is_root_gone = True
            self._is_sending = False
