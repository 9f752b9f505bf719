"""A session in its tree of tasks: the root decides what may be used, a task asks the root (TSK-5).

The rules of the accounts and portions are in `allowance.py`.
"""

from dataclasses import replace

from turnkeeper.features.tasks.session.allowance import AllowanceAnswer, AllowanceRequest, Amount, Caps
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.turn.budgets import Budgets


def budgets_of(session: Session) -> Budgets:
    """Return the running turn's budgets, with what its tasks have drawn and what a task has been granted."""
    turn, allowance = session.turn_slot.running(), session.allowance
    drawn = Amount.of(turn.message.tasks_usage) if allowance else session.accounts.drawn(turn.message.id)
    return replace(turn.budgets, drawn=drawn, allowance=allowance, used=session.used)


def register_task(session: Session, task_id: PublicId) -> AllowanceAnswer:
    """Return the first portion of a task that this session, a root, starts, or why it may not be started."""
    turn = session.turn_slot.running()
    used, max_tasks = Amount.of(turn.own_usage), turn.limits.max_tasks
    return session.accounts.start(
        task_id, turn=turn.message.id, caps=Caps.of(turn.limits), used=used, max_tasks=max_tasks
    )


def void_task(session: Session, task_id: PublicId) -> None:
    """Note that a task was not started, at the root of the tree."""
    if session.allowance:
        session.allowance.void_start(task_id)
    else:
        session.accounts.void(task_id)


def answer_request(session: Session, request: AllowanceRequest) -> None:
    """Apply a request of a task of this root's tree; the answer, if there is one, is sent later."""
    session.note_used()
    limits = session.turn.limits if session.turn else session.config.limits
    answer = session.accounts.answer(request, max_tasks=limits.max_tasks)
    if answer:
        session.accounts.outbox.append((request.task_id, answer))
