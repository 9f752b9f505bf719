"""The rules of a run: what differs between releases, by number (SES-19, docs/decisions/0028).

A run keeps the rules that it began with; its next run gets the current ones. Defaults depend on the rules of the
session's first run.

1   all releases before rules had a number
2   prompts are parked, a stop waits for the unfinished answer, tools that write ask
3   limits of tokens are learned, lists show a new title at once
4   sessions can start tasks
5   a turn writes no search attribute
6   the current rules: quick reads run in the activity of the model call
"""

CURRENT_RULES = 6


class Since:
    """The first rules with a behaviour: `rules >= Since.PARKING` means that the run parks prompts."""

    # ---- rules 2

    PARKING = 2
    """The archive takes prompts and fates that a run can't carry over (SES-6)."""
    UNFINISHED_ANSWERS = 2
    """A stop waits for the written part of the answer, and an answer does not prevent it (SES-9)."""
    DEADLINE_FAILURES = 2
    """A call without time for another attempt fails the turn as out of time (AGT-1)."""
    CHECKED_INPUT = 2
    """A session's input must not contradict itself (SES-4)."""
    PLAIN_INTERRUPTION = 2
    """The reason of an interruption does not contain the prompt's id."""
    ASKING_BEFORE_WRITES = 2
    """Built-in tools that write need approval too (AGT-8). A default."""
    LIMIT_DEFAULTS = 2
    """The current defaults of `limits`."""

    # ---- rules 3

    LEARNED_LIMITS = 3
    """A limit of tokens is learned, instead of halving the window (CTX-7)."""
    SPENT_USAGE = 3
    """The usage of failed attempts counts (AGT-9)."""
    EMPTY_ANSWERS = 3
    """A request with an empty answer is sent again (AGT-9)."""
    REFUSED_TURNS = 3
    """A turn that the vendor refused is replaced in the model view."""
    WORKER_DEATHS = 3
    """A worker's death without time for another attempt is a deadline failure."""
    BACKGROUND_ERRORS = 3
    """An error in a background task fails the workflow task (SES-10)."""
    PROMPT_TITLES = 3
    """A new title is in lists at once."""
    APOSTROPHES = 3
    """A user's name may have an apostrophe."""
    PARKING_WITHOUT_GAPS = 3
    """Parking never drops a prompt between two parked ones until the next run."""
    HISTORY_DEFAULTS = 3
    """The current defaults of `history`."""

    # ---- rules 4

    TASKS = 4
    """A session is offered `run_task` (TSK-5). A default."""

    # ---- rules 5

    RARE_TURN_COUNTS = 5
    """The number of turns is no longer written with every turn (OPS-8)."""

    # ---- rules 6

    QUICK_READS = 6
    """The activity of a model call runs quick reads itself (OPS-8)."""
