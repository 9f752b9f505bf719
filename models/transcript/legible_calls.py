"""The arguments of a turn's calls as people read them, for those that are shown the turn (AGT-8)."""

from pydantic_core import to_json

from turnkeeper.models.legible import legible_json, legible_text
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ReasoningTrajectory, Step, ToolCall


def legible_args(call: ToolCall) -> str:
    """Return the text of a call's arguments, which the call has itself.

    >>> legible_args(ToolCall(id="1.1.0", name="pay", args={"account": 7960607143101464576}))
    'account: 7960607143101464576'
    """
    return legible_text(call.args) if isinstance(call.args, str) else legible_json(to_json(call.args).decode())


def with_legible_args(turn: ConversationMessage) -> ConversationMessage:
    """Return the turn with the text of all arguments that are not stored by reference, and no other text."""
    if not any(isinstance(step, ModelStep) and step.tool_calls for step in turn.steps):
        return turn
    trajectory = ReasoningTrajectory.model_construct(steps=[_with_legible_args(step) for step in turn.steps])
    return turn.model_copy(update={"reasoning_trajectory": trajectory})


def _with_legible_args(step: Step) -> Step:
    if not isinstance(step, ModelStep) or not step.tool_calls:
        return step
    calls = [
        call.model_copy(update={"legible_args": None if call.args_blob else legible_args(call)})
        for call in step.tool_calls
    ]
    return step.model_copy(update={"tool_calls": calls})
