"""What was sent to a session, and everything that was seen of it: plain data, to be checked without any server."""

from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall
from turnkeeper.models.wire import Frozen


class SentPrompt(Frozen):
    """A prompt that was accepted. `answer`: the only right one, word for word; None: it is not known beforehand."""

    id: str
    text: str
    answer: str | None = None


class FileState(Frozen):
    """A file at some time. `content` None: it did not exist. `version` changes with every write, also of the same."""

    content: str | None = None
    version: str | None = None


class ApprovedWrite(Frozen):
    """A file that a tool call was to write once a person had approved it, at three times."""

    path: str
    content: str
    call_id: str
    before: FileState
    """When the approval was asked for."""
    after: FileState
    """When the turn had ended."""
    at_the_end: FileState
    """When everything was over."""


class SessionLog(Frozen):
    """All that is known of a session from outside.

    `prompts` are in the order in which they were accepted. `fates` and `waiting` are the queue's at the end, which has
    the last 200 fates. `transcript` is the full one, `client_turns` what a client held that only followed updates,
    `new_turn_ids` what was new to it, in order, since its last reset, and `partial_texts` the newest text that it
    showed of each model step before the step itself came, by turn and step.
    """

    prompts: list[SentPrompt] = []
    fates: list[Fate] = []
    waiting: list[str] = []
    transcript: list[ConversationMessage] = []
    client_turns: list[ConversationMessage] = []
    new_turn_ids: list[str] = []
    partial_texts: dict[tuple[str, int], str] = {}
    writes: list[ApprovedWrite] = []


def model_steps_of(turn: ConversationMessage) -> list[ModelStep]:
    """Return the turn's steps without what was steered in."""
    return [step for step in turn.steps if isinstance(step, ModelStep)]


def calls_of(turn: ConversationMessage) -> list[ToolCall]:
    """Return the turn's tool calls in their order."""
    return [call for step in model_steps_of(turn) for call in step.tool_calls]
