"""The words of the offline model's answers: each function says one thing, of what it is shown and nothing beyond."""

import re

from turnkeeper.activities.providers.offline.scene import Outcome, Scene
from turnkeeper.activities.providers.offline.text import ended, quoted, short

SHOWN_LINES = 6
"""Lines of a file that are quoted."""

LISTED_LINES = 30
"""Lines of any other result that are quoted."""


# ---- about files and results


def tell_beginning(path: str, outcome: Outcome) -> str:
    """Quote the first lines of a file."""
    lines = outcome.lines
    if not lines:
        return f"{path} is empty."
    opening = f"{path} says" if len(lines) <= SHOWN_LINES else f"{tell_line_count(path, outcome)} It begins"
    return f"{opening}:\n\n{quoted(lines[:SHOWN_LINES], most=SHOWN_LINES)}"


def tell_heading(path: str, outcome: Outcome) -> str:
    """Tell the first Markdown heading of a file; what is fenced as code holds none."""
    is_code = False
    for line in outcome.lines:
        if line.startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code and re.match(r"#{1,6}\s", line) and line.strip("# \t\r"):
            heading = short(line.strip("# \t\r"), 200)
            return f"The first heading of {path} is “{heading}”."
    return f"I see no Markdown heading in {shown_of(path, outcome)}."


def tell_line_count(path: str, outcome: Outcome) -> str:
    """Tell how many lines a file has, unless only a part of it was shown."""
    count = outcome.line_count
    if count is None:
        return f"I was shown only a part of {path}, so I cannot count its lines."
    return f"{path} has {count} line{'' if count == 1 else 's'}."


def tell_first_line(path: str, outcome: Outcome) -> str:
    """Quote the first line of a file."""
    first = quoted(outcome.lines[:1], most=1)
    return f"The first line of {path} is:\n\n{first}" if first else f"{path} is empty."


def tell_last_line(path: str, outcome: Outcome) -> str:
    """Quote the last line of a file that is not blank, unless only a part of it was shown."""
    if outcome.is_cut:
        return f"I was shown only a part of {path}, so I cannot tell its last line."
    written = [line for line in outcome.lines if line.strip()]
    return f"The last line of {path} is:\n\n{quoted(written[-1:], most=1)}" if written else f"{path} is empty."


def shown_of(path: str, outcome: Outcome) -> str:
    """Name the file, or the part of it that was shown."""
    return f"the part I was shown of {path}" if outcome.is_cut else path


def tell_result(outcome: Outcome) -> str:
    """Quote what a tool said."""
    return f"{ended(outcome.line)}\n\n{quoted(outcome.lines, most=LISTED_LINES)}".strip()


# ---- about the conversation


def tell_first_request(scene: Scene) -> str:
    """Quote what was asked first."""
    if not scene.requests:
        return "This is the first thing you asked that I can see."
    return f"The first thing you asked that I can see was: “{short(scene.requests[0], 200)}”."


def tell_last_request(scene: Scene) -> str:
    """Quote what was asked before this."""
    if not scene.requests:
        return "I see nothing that you asked before this."
    return f"Before this you asked: “{short(scene.requests[-1], 200)}”."


def tell_last_answer(scene: Scene) -> str:
    """Quote the model's last answer."""
    if not scene.answers:
        return "I see nothing that I said before this."
    return f"The last thing I said was:\n\n{quoted(scene.answers[-1].splitlines(), most=SHOWN_LINES)}"


def tell_last_read(scene: Scene) -> str:
    """Name the file that was read last, and quote its beginning."""
    if not scene.files_read:
        return "I see no file that I read in this conversation."
    path, outcome = scene.files_read[-1]
    return f"The last file I read was {path}. {tell_beginning(path, outcome)}"


# ---- about the model itself

_ABILITIES = (
    ("file_read", "read files: “read README.md and tell me its first heading”"),
    ("file_list", "list them: “list files in docs”"),
    ("file_search", "search them: “search for TODO”"),
    ("file_write", "write them: “write hello to notes.txt”"),
    ("file_write", "remember: “remember that the code is 4711”"),
    ("now", "tell the time: “what time is it”"),
    ("run_task", "delegate: “delegate counting the files”"),
)


def tell_abilities(scene: Scene) -> str:
    """Say that nothing was understood, and what would be: only what the offered tools allow."""
    asked = f"You wrote: “{short(scene.asked, 80)}”. That I do not understand. " if scene.asked.strip() else ""
    who = "I am the offline model, a program with no language model behind it. I can"
    offered = [f"- {ability}" for tool, ability in _ABILITIES if tool in scene.offered]
    looking_back = "- answer about this conversation: “what did I ask first?”, “what do you remember?”"
    return "\n".join([f"{asked}{who}", "", *offered, looking_back])


def tell_closing_thought(scene: Scene, *, understood: bool) -> str:
    """Tell what the model thinks before it answers."""
    if not understood:
        return "I recognise nothing in this that I could do offline. I say so, and what I can do instead."
    if not scene.results:
        return "There is no call left to make for this. I answer from what I can see."
    return "The tools have answered. I say what their results show, and nothing beyond them."
