"""All texts of the terminal client. `str.format` fills in `{names}`."""

from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.conversation import SessionStatus, TaskStatus

# ---- one prompt, without a terminal

BLANK_MESSAGE = "Nothing to send: the message is blank."
NO_TERMINAL = "This is not a terminal. Pass a MESSAGE, or pipe one in."
START_GATEWAY = "Start it with `{command}`."
STOPPED = "Stopped."
APPROVAL_NEEDED = "Approval needed:\n\n{calls}"
APPROVAL_NEEDED_EARLIER = "Approval needed for an earlier prompt:\n\n{calls}"
TASK_APPROVAL_NEEDED = "Approval needed in a task: {tasks}\n\n{calls}"
TASK_CALL = "Session {session_id}:\n\n{text}"
DECIDE_WITH = "Your prompt is safe. Decide with: {command}"
RESUME_WITH = "Resume with: {command}"

# ---- tasks

TASK_STATUS: dict[TaskStatus, str] = {
    "working": "working",
    "input_required": "needs approval",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
TASK_PROGRESS = "Task {title}: {progress}"
TASK_DECIDE_WITH = "Decide with: {command}"
TASK_CREATED = "{task_id}\n  Watch it: {url}"
TASK_WARNING = "Warning: {field}: {message}"
TASK_FIELD_ERROR = "  {field}: {reason} (got {value})"
TASK_DECIDE = "Approve or reject it at {url}"
TASK_CREATE_FAILED = "The task was not created."
NO_TASKS = "There are no tasks."
MORE_TASKS = "More: --cursor {cursor}"
TASK_MESSAGE_SENT = "Sent. Wait for the answer with: {command}"
INHERIT_NEEDS_PARENT = "--inherit needs --parent: the session to inherit from."
INHERIT_AND_HISTORY = "--inherit and a conversation_history in --context exclude each other."
CONTEXT_UNREADABLE = "--context {path} can't be used: {reason}"
CONTEXT_NO_OBJECT = "it is not a JSON object of fields; the description is given on the command line."

# ---- copies of sessions

COPIED = "{session_id}\n  Continue it with: {command}"
FILE_UNREADABLE = "{path} can't be read: {reason}."
FILE_UNWRITABLE = "{path} can't be written: {reason}."

# ---- the audit

NO_AUDIT = "Nothing was changed."
AUDIT_OUTCOME = {"accepted": "accepted", "refused": "refused", "failed": "failed", "unknown": "outcome unknown"}

# ---- start and end of a chat

HINT = "/help lists the commands. Ctrl-C stops your turn; press it twice to leave."
MODEL = "Model: {model}"
MODEL_NOTES = {
    None: "unknown, because no worker is running. Everything you send is safe.",
    "offline:": "offline: (built-in demo model, works offline, uses real tools)",
}
CTRL_C_AGAIN = "Press Ctrl-C again to leave. The session goes on."
STILL_SENDING = "Still sending your prompts. Press Ctrl-C to leave without sending them."
NO_PROMPTS_REASON = "No prompts were sent."
SESSION_ENDED = "No prompts were sent, so the session was ended."
SESSION_GOES_ON = "The session goes on. Resume with: {command}"


def session_over(status: SessionStatus | None) -> str:
    """Return that a closed session takes no prompts.

    >>> session_over("ended"), session_over("terminated")
    ('The session has ended and is read-only.', 'The session was terminated and is read-only.')
    """
    return f"The session {'has' if status == 'ended' else 'was'} {status} and is read-only."


# ---- the status line and the live output

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
JOINS_TURN = "joins this turn"
MORE_PROMPTS = "and {prompts}: /queue"
NO_ANSWER = "The model did not answer."
TRYING_AGAIN_IN = "{reason} Trying again in {time}"
TRYING_AGAIN_NOW = "{reason} Trying again now"
RECONNECTING = "{reason} Reconnecting… Everything you sent is safe."
STILL_LOST = "{reason} Trying again…"
AS_OF = "As of {time}, no worker is running. Later turns are shown once one is back."
RECONNECTED = "Reconnected. Nothing was lost."

_CONNECTION_PROBLEMS = {
    "no-worker": "No worker is running.",
    "temporal-unreachable": "The server can't reach Temporal.",
}


def connection_problem(problem: str | None, reason: str) -> str:
    """Return why the connection is lost, as one sentence; `problem` is the gateway's name for it.

    >>> connection_problem(None, "The gateway can't be reached: nothing listens there")
    "The gateway can't be reached: nothing listens there."
    >>> connection_problem("no-worker", "No worker answered for session 'a'.")
    'No worker is running.'
    """
    return _CONNECTION_PROBLEMS.get(problem or "", f"{reason.removesuffix('.')}.")


# ---- turns

TURN = "turn {number}"
TURN_DETAILS = "turn {number}, details"
INTERRUPTED = "(stopped here)"
EXCERPT = "This is an excerpt. The full text can't be loaded now."
RESULT_SIZE = " of {size}"


def rejected(*, by: str | None, reason: str | None) -> str:
    """Return who rejected a call and why, as far as that is known.

    >>> rejected(by="Ann", reason="Too much."), rejected(by=None, reason=None)
    ('rejected by Ann: Too much.', 'rejected')
    """
    who = f"rejected by {by}" if by else "rejected"
    return f"{who}: {reason}" if reason else who


_STOP_REASONS = {
    "Stopped by the user.": "You stopped this answer.",
    "Interrupted by a new prompt.": "Stopped because you sent a new prompt.",
    "The session was cancelled.": "Stopped because the session was cancelled.",
}


def stopped_turn(error: str) -> str:
    """Return why a turn was stopped.

    >>> stopped_turn("Cancelled: Stopped by the user."), stopped_turn("Cancelled: wrong account")
    ('You stopped this answer.', 'Stopped: wrong account')
    """
    reason = error.removeprefix("Cancelled: ")
    return _STOP_REASONS.get(reason, f"Stopped: {reason}")


def left_out(count: int, noun: str) -> str:
    """Return how much is not shown.

    >>> left_out(2, "earlier turn")
    '… 2 earlier turns'
    """
    return f"… {counted(count, noun)}"


# ---- approvals

APPROVAL_HEADING = "Approval needed for call {call_id}{position}"
TASK_APPROVAL_HEADING = "Approval needed for call {call_id} in session {session_id}"
POSITION = " ({number} of {count})"
ARGUMENTS_SIZE = "({size} of arguments)"
NEXT_PART = "part {part} of {parts}"
SHOW_REST = "/show prints {rest}; then it can be approved"
APPROVAL_UNREADABLE = "The call can't be loaded: {error} /show tries again."
NOT_SHOWN_WHOLE = "Not all of this call was shown. /show prints the rest; then answer again."
ARGUMENTS_MISSING = "The arguments can't be loaded now. /show tries again; the call can be rejected."
APPROVAL_KEYS = ("[y]es once / [a]lways in this session / [n]o + reason", "[y]es [a]lways [n]o", "y/a/n")
"""The keys of an approval; the longest text that fits is shown."""
QUESTION_CHANGED = "The question changed while you were typing. Read it and answer again."

# ---- commands

COMMANDS: dict[str, tuple[str, str]] = {
    "queue": ("", "show the queued prompts"),
    "remove": ("N", "remove queued prompt N"),
    "attach": ("[FILE]", "send a file with the next prompt; without FILE, attach nothing after all"),
    "steer": ("TEXT", "add a prompt to the running turn, before its next step"),
    "interrupt": ("TEXT", "stop the running turn and send this prompt next"),
    "retry": ("", "send the prompt of the last failed turn again"),
    "stop": ("", "stop the running turn, even one that was started elsewhere"),
    "show": ("", "print the rest of the call that needs approval"),
    "details": ("[N]", "show turn N, or the newest, with thinking, arguments and results"),
    "model": ("[NAME]", "show the model, or use another from the next turn on"),
    "title": ("[TEXT]", "show or change the session's title"),
    "open": ("", "print links to the session for a browser"),
    "help": ("", "show this help"),
    "quit": ("", "leave (or press Ctrl-D); the session goes on"),
}
"""The argument of each command, in brackets if it is optional, and what the command does."""

KEYS = {
    "Enter, Alt-Enter": "send; start a new line",
    "Esc": "stop the running turn, if it was started here",
    "Ctrl-C": "the same; leave if there is nothing to stop, or when pressed twice",
    "y, a, n REASON": "decide on the call above: yes, always in this session, or no",
}

UNKNOWN_COMMAND = "Unknown command /{name}. /help lists the commands; // starts a prompt with a slash."
NOT_IN_RANGE = "{text!r} is not a number from 1 to {last}."
NOTHING_TO_CHOOSE = "There is nothing to choose from."
NOT_STARTED_HERE = "This turn was not started here. Use /stop to stop it."
NO_TURN_RUNS = "No turn is running."
ALL_SHOWN = "All of the call was shown."
NOTHING_TO_SHOW = "No call needs approval."
NO_TURN_YET = "There are no turns yet."
STOPPING_TURN = "Stopping this turn. Press Ctrl-C again to leave; the session goes on."
TURN_UNREADABLE = "Turn {number} can't be loaded now."
NO_PROMPT_QUEUED = "No prompts are queued."
NEXT_MODEL = "The model is {model} from the next turn on."
NEW_TITLE = "The title is now {title!r}."
NO_TITLE = "The session has no title yet."
NOT_DONE = "Not done: {error}"
NOT_CONFIRMED = "The last action was not confirmed. It may not have been done."
NOT_ATTACHED = "Not attached: {reason}"
ATTACHED = "{names} will be sent with the next prompt. /attach alone removes them."
NOTHING_ATTACHED = "Nothing is attached."
NOT_SENT = "Not sent: {text}"
MAYBE_NOT_SENT = "May not have arrived: {text}"
