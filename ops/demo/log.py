"""What was asked of a session, and everything that was seen of it: what a verdict is about.

A record is plain data. Whoever drives a session keeps one, the demo or a test, and has it judged afterwards by
`verdict`, without any server.
"""

from turnkeeper.models.session.queue.prompts import Fate, PromptMode
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.wire import Frozen


class Asked(Frozen):
    """A prompt, as a client sent it.

    `accepted`: it was answered with 202, or it was refused; None: no answer came, and either is right.
    `wants_answer`: a turn that ends without one is a fault. `answer`: what has to be answered, word for word; None: it
    is not known beforehand.
    """

    id: str
    text: str
    mode: PromptMode = "enqueue"
    accepted: bool | None = True
    wants_answer: bool = True
    answer: str | None = None


class Glimpse(Frozen):
    """The partial output that a client showed last of a model step, before the step itself came (AGT-5)."""

    message_id: str
    step: int
    text: str


class FileLook(Frozen):
    """What stood in a file when somebody looked. `content` None: there was no such file.

    `version` is another one after every write, also of the same content.
    """

    content: str | None = None
    version: str | None = None


class ApprovedWrite(Frozen):
    """A file that a tool call was to write once a person had approved it, looked at three times."""

    path: str
    content: str
    call_id: str
    before: FileLook
    """When the approval was asked for."""
    after: FileLook
    """When the turn had ended."""
    at_the_end: FileLook
    """When everything was over."""


class Record(Frozen):
    """All that is known of a session from outside.

    `asked` is in the order in which the prompts were accepted. `fates` and `waiting` are what the queue told at the
    end, which has the last 200 fates; `transcript` is the full one, `watched` what a client held that only followed
    updates, and `announced` the ids that were new to it, in order, since its last reset.
    """

    asked: list[Asked] = []
    fates: list[Fate] = []
    waiting: list[str] = []
    transcript: list[ConversationMessage] = []
    watched: list[ConversationMessage] = []
    announced: list[str] = []
    glimpses: list[Glimpse] = []
    writes: list[ApprovedWrite] = []
