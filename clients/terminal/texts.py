"""All texts that a person reads in the terminal. Those with `{names}` are filled in by `str.format`."""

from turnkeeper.clients.terminal.formatting import counted
from turnkeeper.models.transcript.conversation import SessionStatus
from turnkeeper.models.transcript.task_view import TaskStatus

# ---- one question, without a person at the terminal

BLANK_MESSAGE = "There is nothing to send: the message is blank."
NO_TERMINAL = "This is not a terminal. Give a MESSAGE, or pipe one in."
START_GATEWAY = "Start it with `{command}`."
STOPPED = "Stopped."
APPROVAL_NEEDED = "Approval needed: {calls}"
APPROVAL_NEEDED_EARLIER = "Approval needed, for an earlier prompt: {calls}"
DECIDE_WITH = "The prompt is safe. Decide with: {command}"
CONTINUE_WITH = "Continue with: {command}"

# ---- tasks

TASK_STATUS: dict[TaskStatus, str] = {
    "working": "working",
    "input_required": "needs a decision",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
TASK_CREATED = "{task_id}\n  Watch it: {url}"
TASK_WARNING = "Warning: {field}: {message}"
TASK_FIELD_ERROR = "  {field}: {reason} (got {value})"
TASK_DECIDE = "Decide at {url}"
TASK_CREATE_FAILED = "The task was not created."
NO_TASKS = "There are no tasks."
MORE_TASKS = "More: --cursor {cursor}"
TASK_MESSAGE_SENT = "Sent. See what comes of it: {command}"
INHERIT_NEEDS_PARENT = "--inherit needs --parent: whose conversation the task inherits."
INHERIT_AND_HISTORY = "--inherit and a conversation_history in --context exclude each other."
CONTEXT_UNREADABLE = "--context {path} can't be used: {reason}"
CONTEXT_NO_OBJECT = "it is not a JSON object of fields; the description is given on the command line."

# ---- coming and leaving

COME_BACK_WITH = "  Come back with: {command}"
HINT = "/help lists the commands. Ctrl-C stops a turn that you started; twice leaves."
CTRL_C_AGAIN = "Ctrl-C again leaves; the session goes on."
STILL_SENDING = "Still sending what was typed; Ctrl-C leaves without."
NOTHING_SAID = "Nothing was said."
SESSION_ENDED = "Nothing was said, so the session was ended."
SESSION_GOES_ON = "The session goes on. Come back with: {command}"
SESSION_OVER = "The session is over ({status})."


def model(name: str | None) -> str:
    """Say which model it is, and what it means if it is none of a vendor.

    >>> model("anthropic:claude-opus-5-5"), model("offline:script/story.json")
    ('Model: anthropic:claude-opus-5-5', 'Model: offline:script/story.json')
    >>> model("offline:")
    'Model: offline: (the built-in demo model: it works offline and uses real tools)'
    """
    if name is None:
        return "Model: not known, as no worker is running. What you send is safe."
    about = " (the built-in demo model: it works offline and uses real tools)" if name == "offline:" else ""
    return f"Model: {name}{about}"


# ---- the status line, and what goes on now

STATUS: dict[SessionStatus | None, str] = {
    None: "connecting",
    "idle": "ready",
    "processing": "working",
    "awaiting_approval": "needs your approval",
    "waiting_retry": "waiting for the model",
    "ending": "ending",
    "ended": "ended",
    "cancelled": "cancelled",
    "terminated": "terminated",
    "stuck": "stuck",
}
STATUS_LOST = "reconnecting"
QUEUED_COUNT = "{count} queued"
SENDING_COUNT = "{count} sending"
THINKING = "thinking"
STOPPING = "stopping"
SENDING = "sending"
QUEUED = "queued {position}"
JOINS_IN = "joins in"
MORE_PROMPTS = "and {prompts}: /queue"
NO_ANSWER = "The model did not answer."
TRYING_AGAIN_IN = "{reason} Trying again in {time}"
TRYING_AGAIN_NOW = "{reason} Trying again now"
RECONNECTING = "{reason}. Reconnecting. Everything you sent is safe."
STILL_LOST = "{reason}; trying again"
RECONNECTED = "Connected again: nothing was lost."

# ---- turns

TURN = "turn {number}"
TURN_OPENED = "turn {number}, opened"
INTERRUPTED = "(interrupted here)"
EXCERPT = "This is an excerpt: the whole text can't be read now."
RESULT_SIZE = " of {size}"
REJECTED = "rejected"
REJECTED_BECAUSE = "rejected: {reason}"

_STOP_REASONS = {
    "Stopped by the user.": "You stopped this answer.",
    "Interrupted by a new prompt.": "Stopped, because you sent a new prompt.",
    "The session was cancelled.": "Stopped, because the session was cancelled.",
}


def stopped_turn(error: str) -> str:
    """Say why a turn was stopped.

    >>> stopped_turn("Cancelled: Stopped by the user."), stopped_turn("Cancelled: wrong account")
    ('You stopped this answer.', 'Stopped: wrong account')
    """
    reason = error.removeprefix("Cancelled: ")
    return _STOP_REASONS.get(reason, f"Stopped: {reason}")


def left_out(count: int, noun: str) -> str:
    """Say how much is not shown.

    >>> left_out(2, "earlier turn")
    '… 2 earlier turns'
    """
    return f"… {counted(count, noun)}"


# ---- approvals

ASK_WITH_ARGUMENTS = "Run {tool} with these arguments?"
ARGUMENTS_UNREADABLE = "Its arguments can't be read: {error}"
ARGUMENTS_SIZE = "({size} of arguments)"
MORE_CALLS = " ({calls} after it)"
APPROVAL_KEYS = ("[y]es once / [a]lways in this session / [n]o + reason", "[y]es [a]lways [n]o", "y/a/n")
"""What can be answered, in ever fewer words."""
QUESTION_CHANGED = "The question changed while you were typing. Read it and answer again."

# ---- commands

COMMANDS: dict[str, tuple[str, str]] = {
    "queue": ("", "show the queued prompts"),
    "remove": ("N", "remove queued prompt N"),
    "steer": ("TEXT", "add to the running turn, before its next step"),
    "interrupt": ("TEXT", "stop the running turn and ask this next"),
    "retry": ("", "send the prompt of the last failed turn again"),
    "stop": ("", "stop the running turn, also one that was started elsewhere"),
    "details": ("[N]", "open turn N, or the newest: thinking, arguments and results"),
    "model": ("[NAME]", "show the model, or use another from the next turn on"),
    "title": ("[TEXT]", "show or change the session's title"),
    "open": ("", "print the session's links for a browser"),
    "help": ("", "show this"),
    "quit": ("", "leave; the session goes on (or Ctrl-D)"),
}
"""What a command takes, in brackets where it may be left away, and what it does."""

KEYS = {
    "Enter, Alt-Enter": "send; begin a new line",
    "Esc": "stop the running turn, if it was started here",
    "Ctrl-C": "the same; leave where there is nothing to stop, or pressed twice",
    "y, a, n REASON": "decide on the call above the line: yes, always in this session, or no",
}

UNKNOWN_COMMAND = "There is no command /{name}. /help lists them; // begins a prompt with a slash."
NOT_IN_RANGE = "{text!r} is not a number from 1 to {last}."
NONE_TO_CHOOSE = "There is none."
NOT_STARTED_HERE = "This turn was not started here. /stop stops it."
NO_TURN_RUNS = "No turn is running."
NO_TURN_YET = "There is no turn yet."
STOPPING_TURN = "Stopping this turn; the session goes on. Ctrl-C again leaves."
TURN_UNREADABLE = "Turn {number} can't be read now."
NO_PROMPT_QUEUED = "No prompt is queued."
NEXT_MODEL = "The model is {model} from the next turn on."
CURRENT_MODEL = "The model is {model}."
NO_MODEL = "The model is not known now."
NEW_TITLE = "The title is {title!r}."
NO_TITLE = "It has no title yet."
NOT_DONE = "Not done: {error}"
NOT_CONFIRMED = "The last action was not confirmed. It may not have been done."
NOT_SENT = "Not sent: {text}"
MAYBE_NOT_SENT = "May not have arrived: {text}"
