"""Input and output of the activities that prepare a hand-off (CTX-15)."""

from pydantic import JsonValue

from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.tasks.task_input import TaskInput
from turnkeeper.models.tasks.history_policy import HandOffPresets
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.trajectory import BlobRef
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
    """Output of `prepare_sub_task`: the task with its context, and what was changed, in sentences.

    `error`: the history is invalid, and no task can be started.
    """

    task: TaskInput = TaskInput()
    notes: list[str] = []
    error: str | None = None
