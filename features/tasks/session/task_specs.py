"""The specs of the tools that a session runs without an activity (TSK-4, TSK-5)."""

from collections.abc import Sequence

from pydantic import JsonValue

from turnkeeper.features.tasks.session.task_state import FINDINGS_BYTES, MESSAGE_CHARS
from turnkeeper.models.transcript.model_call import ToolSpec

RUN_TASK = "run_task"
REPORT_PROGRESS = "report_progress"

_TEXT: JsonValue = {"type": "string"}
_TEXTS: JsonValue = {"type": "array", "items": _TEXT}

_RUN_TASK_ARGUMENTS: dict[str, JsonValue] = {
    "description": {"type": "string", "description": "What is to be done, complete in itself."},
    "background_context": {"type": "string", "description": "What the agent should know, and why it is asked."},
    "expected_deliverables": _TEXTS,
    "success_criteria": _TEXTS,
    "constraints": _TEXTS,
    "relevant_files": _TEXTS,
    "related_documentation": _TEXTS,
    "client_cwd": {"type": "string", "description": "The working directory of the person or program."},
    "history": {
        "enum": ["latest", "relevant", "none"],
        "description": (
            "What to pass on of this conversation: its latest messages, shortened; those that matter to the "
            "description, from all of it; or none, the default."
        ),
    },
    "priority": {
        "enum": ["P0", "P1", "P2", "P3", "P4"],
        "description": "P0 is the most urgent, P2 the default.",
    },
    "model": {"type": "string", "description": "provider:name; by default that of this turn."},
    "title": {"type": "string", "maxLength": 120},
    "background": {"type": "boolean", "description": "Do not wait for the answer."},
    "timeout": {"type": "number", "minimum": 1, "description": "Seconds that the task may take."},
}

RUN_TASK_SPEC = ToolSpec(
    name=RUN_TASK,
    description=(
        "Give a task to another agent, which has the same tools and workspace and sees nothing of this conversation "
        "but what you pass on. Returns its final answer; with background: true it returns at once, and the answer "
        "comes later as a message."
    ),
    input_schema={
        "type": "object",
        "properties": _RUN_TASK_ARGUMENTS,
        "required": ["description"],
        "additionalProperties": False,
    },
    effect="read",  # it changes nothing itself; the calls of the task ask for approval
    built_in=True,
)

REPORT_PROGRESS_SPEC = ToolSpec(
    name=REPORT_PROGRESS,
    description=(
        "Report how far this task is to those who gave it: one line, a percentage, or structured findings. "
        "Your final answer is passed on by itself."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "message": {"type": "string", "maxLength": MESSAGE_CHARS},
            "percent": {"type": "integer", "minimum": 0, "maximum": 100},
            "findings": {"type": "object", "description": f"At most {FINDINGS_BYTES:,} bytes of JSON."},
        },
        "additionalProperties": False,
    },
    effect="read",
    built_in=True,
)

TASK_TOOLS = (RUN_TASK, REPORT_PROGRESS)


def run_task_spec(handoffs: Sequence[str]) -> ToolSpec:
    """Return `run_task` for a session that may hand over to these agents; with none, to one like itself."""
    if not handoffs:
        return RUN_TASK_SPEC
    agent: JsonValue = {"enum": [*handoffs], "description": "The agent that does it."}
    schema = {
        **RUN_TASK_SPEC.input_schema,
        "properties": {"agent": agent, **_RUN_TASK_ARGUMENTS},
        "required": ["agent", "description"],
    }
    description = RUN_TASK_SPEC.description.replace("which has the same tools and workspace and", "which")
    return RUN_TASK_SPEC.model_copy(update={"description": description, "input_schema": schema})
