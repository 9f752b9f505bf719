"""The input of a sub-task (TSK-5)."""

from datetime import datetime

from pydantic import JsonValue

from turnkeeper.features.tasks.rules.hand_off import Inheritance
from turnkeeper.features.tasks.rules.text_room import has_attachments
from turnkeeper.features.tasks.session.allowance import TaskAllowance
from turnkeeper.features.tasks.session.task import RunTask, prepare_task
from turnkeeper.features.tasks.session.task_state import TaskInput
from turnkeeper.features.tasks.session_part import tasks_of, with_task
from turnkeeper.models.ids import PublicId, sibling_url
from turnkeeper.models.session.agents import AgentChange
from turnkeeper.models.session.budgets import Amount, Caps
from turnkeeper.models.session.messages import SessionInput, with_agent
from turnkeeper.models.session.session import Session
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.transcript.conversation import BlobRef, SubTask
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.wire import Compact, UtcDatetime


class CondenseCall(Compact):
    """Input of `condense_history`: where the texts are, and how they are condensed.

    `request` is the number of the model request. The prompt may have `max_bytes` as UTF-8, and the model calls may use
    what is left of the turn's budget; `None`: no limit.
    """

    turn: int
    texts: BlobRef
    model: str
    request: int
    max_bytes: int
    tokens_left: int | None = None
    cost_left: float | None = None


class CondenseOutcome(Compact):
    """Output of `condense_history`: the prompt with condensed texts, or `None` if no text could be condensed.

    `trouble` says why texts were cut instead.
    """

    prompt: str | None = None
    condensed: int = 0
    trouble: str | None = None
    usage: CompactUsage = None
    spent: CompactUsage = None
    """Usage of attempts without a complete answer (AGT-9)."""


class PrepareSubTask(Compact):
    """Input of `prepare_sub_task`: what `run_task` was called with, for the task `task_id`.

    The conversation is not in it: the activity asks the session for it.
    """

    task_id: PublicId
    args: dict[str, JsonValue]
    presets: HandOffPresets | None = None
    now: UtcDatetime


class PreparedSubTask(Compact):
    """Output of `prepare_sub_task`: what of a `PreparedTask` is in the history, with what was changed, in sentences.

    `error`: the history is invalid, and no task can be started.
    """

    task: TaskInput = TaskInput()
    notes: list[str] = []
    error: str | None = None


BACKGROUND_OPEN_SECONDS = 3_600.0
"""How long a background task stays open for further prompts after an answer."""


def prepare_sub_task(session: Session, request: RunTask, *, now: datetime) -> PreparedSubTask:
    """Return the context of a task, from what the session itself knows. Raises `TaskValidationError`.

    Ranking and condensing need an activity, see `needs_activity`; here its policy only cuts.
    """
    policy = request.policy(tasks_of(session).input.presets or HandOffPresets())
    policy = policy.model_copy(update={"relevant_to": False, "compress": "truncate"})
    inherited = None
    if request.inherits_history:
        inherited = Inheritance(policy).with_older(session.transcript.turns, has_older=session.transcript.archived > 0)
    request = request.model_copy(update={"history_policy": policy, "history": None})
    prepared = prepare_task(
        request, now=now, inherited=inherited, presets=HandOffPresets(keep_user=policy, keep_assistant=policy)
    )
    return PreparedSubTask(task=TaskInput(context=prepared.context, report=prepared.report), notes=prepared.notes)


def needs_activity(session: Session, request: RunTask) -> bool:
    """Return whether the session can't prepare the history of a task itself.

    That is so if it is to be ranked or condensed, has attachments, or is partly in the archive.
    """
    policy, transcript = request.policy(tasks_of(session).input.presets or HandOffPresets()), session.transcript
    if not request.inherits_history and request.conversation_history is None:
        return False
    if policy.ranks or policy.compress == "summarise" or has_attachments(request.conversation_history):
        return True
    inherited = Inheritance(policy).with_older(transcript.turns, has_older=transcript.archived > 0)
    return request.inherits_history and (
        not inherited.is_enough or any(turn.has_attachments for turn in transcript.turns)
    )


def sub_task_input(
    session: Session,
    request: RunTask,
    task: SubTask,
    prepared: PreparedSubTask,
    *,
    portion: Amount,
    seconds_left: float,
) -> SessionInput:
    """Return the input of a recorded task.

    The task has the model, tools and limits of its agent, or else the turn's; at most the turn's remaining time, and a
    first portion of what the root's turn may use, in place of limits of its own.
    """
    turn, config = session.turn_slot.running(), session.config
    agent = config.agents[request.agent] if request.agent else None
    if agent:
        config = with_agent(config, AgentChange(agent=agent, others=config.agents))
    source = agent or turn
    timeout = request.timeout or source.limits.turn_timeout
    limits = source.limits.model_copy(
        update={
            "turn_timeout": timeout if request.background else max(1.0, min(timeout, seconds_left)),
            "max_task_depth": max(0, turn.limits.max_task_depth - 1),
            "max_tokens_per_turn": None,
            "max_cost_per_turn": None,
        }
    )
    start = config.model_copy(
        update={
            "title": task.title,
            "model": request.model or source.model,
            "limits": limits,
            "tools": source.tools,
            "tool_policy": source.tool_policy,
            "chat_url": sibling_url(session.config.chat_url, session.id, task.task_id),
        }
    )
    allowance = tasks_of(session).allowance
    above = allowance.start if allowance else TaskAllowance(root=session.id, depth=0, caps=Caps.of(turn.limits))
    return with_task(
        start,
        prepared.task.model_copy(
            update={
                "parent": session.id,
                "reports": True,
                "background": request.background,
                "allowance": above.model_copy(update={"depth": above.depth + 1, "portion": portion}),
                "open_seconds": BACKGROUND_OPEN_SECONDS if request.background else 0,
            }
        ),
    )
