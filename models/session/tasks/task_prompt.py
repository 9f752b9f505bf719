"""The first prompt of a task's session (TSK-3, CTX-16)."""

from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.session.tasks.task_input import TaskInput
from turnkeeper.models.tasks.enrichment import first_prompt
from turnkeeper.models.transcript.attachment_contents import json_bytes


def task_prompt(task: TaskInput, *, limits: Limits) -> PromptSignal | str | None:
    """Return the first prompt that is made from the task's context; `None` if it has none.

    Attachments that the session would reject are left out: then the history only names them.
    """
    if task.context is None:
        return None
    text = first_prompt(task.context)
    if not task.attachments or json_bytes(task.attachments) > limits.attachments_bytes:
        return text
    return PromptSignal(text=text, attachments=task.attachments)
