"""The sentences that the offline model answers with, made from what it was shown alone."""

import re
from collections.abc import Iterable

from turnkeeper.activities.providers.offline.conversation import Conversation, Outcome
from turnkeeper.activities.providers.offline.intents import MAX_CHARS, ConversationQuestion, FileQuestion
from turnkeeper.activities.providers.offline.text import end_sentence, quote, shorten

FILE_LINES = 6
"""Lines of a file that are quoted."""

RESULT_LINES = 30
"""Lines of any other result that are quoted."""

_ABILITIES = (
    ("file_read", "read files: “read README.md and tell me its first heading”"),
    ("file_list", "list them: “list files in docs”"),
    ("file_search", "search them: “search for TODO”"),
    ("file_write", "write them: “write hello to notes.txt”"),
    ("file_write", "remember: “remember that the code is 4711”"),
    ("now", "tell the time: “what time is it”"),
    ("run_task", "delegate: “delegate counting the files”"),
)
"""What each tool makes possible."""


def about_file(question: FileQuestion, path: str, outcome: Outcome) -> str:
    """Answer a question about a file from the part of it that was shown."""
    lines = outcome.lines
    match question:
        case "first heading":
            heading = _first_heading(lines)
            if heading is None:
                return f"I see no Markdown heading in {visible_part(path, outcome)}."
            return f"The first heading of {path} is “{shorten(heading, 200)}”."
        case "line count":
            count = outcome.line_count
            if count is None:
                return f"I was shown only a part of {path}, so I cannot count its lines."
            return f"{path} has {count} line{'' if count == 1 else 's'}."
        case "last line":
            if outcome.is_cut:
                return f"I was shown only a part of {path}, so I cannot tell its last line."
            lines = [line for line in lines if line.strip()][-1:]
            start = f"The last line of {path} is"
        case "first line":
            lines = lines[:1]
            start = f"The first line of {path} is"
        case "beginning":
            is_whole = len(lines) <= FILE_LINES
            start = f"{path} says" if is_whole else f"{about_file('line count', path, outcome)} It begins"
            lines = lines[:FILE_LINES]
    return f"{start}:\n\n{quote(lines, max_lines=FILE_LINES)}" if lines else f"{path} is empty."


def visible_part(path: str, outcome: Outcome) -> str:
    """Name the file, or the part of it that was shown."""
    return f"the part I was shown of {path}" if outcome.is_cut else path


def tool_result(outcome: Outcome) -> str:
    """Quote the result of a tool, or explain its failure."""
    text = f"{end_sentence(outcome.line)}\n\n{quote(outcome.lines, max_lines=RESULT_LINES)}"
    return outcome.failure or text.strip()


def about_conversation(question: ConversationQuestion, conversation: Conversation) -> str:
    """Answer a question about the conversation from the part of it that can be seen."""
    requests = conversation.earlier_requests
    match question:
        case "first request":
            if not requests:
                return "This is the first thing you asked that I can see."
            return f"The first thing you asked that I can see was: “{shorten(requests[0], 200)}”."
        case "previous request":
            if not requests:
                return "I see nothing that you asked before this."
            return f"Before this you asked: “{shorten(requests[-1], 200)}”."
        case "previous answer":
            if not conversation.answers:
                return "I see nothing that I said before this."
            lines = conversation.answers[-1].splitlines()
            return f"The last thing I said was:\n\n{quote(lines, max_lines=FILE_LINES)}"
        case "newest file":
            if not conversation.files_read:
                return "I see no file that I read in this conversation."
            path, outcome = conversation.files_read[-1]
            return f"The last file I read was {path}. {about_file('beginning', path, outcome)}"
        case "request length":
            chars = len(conversation.request)
            return f"Your request has {chars:,} characters; offline I understand up to {MAX_CHARS:,}."


def abilities(conversation: Conversation) -> str:
    """Admit that nothing was understood, and list what the offered tools make possible."""
    request = shorten(conversation.request, 80)
    opening = f"You wrote: “{request}”. That I do not understand. " if request else ""
    return "\n".join(
        [
            f"{opening}I am the offline model, a program with no language model behind it. I can",
            "",
            *(f"- {ability}" for tool, ability in _ABILITIES if tool in conversation.tools),
            "- answer about this conversation: “what did I ask first?”, “what do you remember?”",
        ]
    )


def _first_heading(lines: Iterable[str]) -> str | None:
    """Return the first Markdown heading; what is fenced as code holds none."""
    is_code = False
    for line in lines:
        if line.startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code and re.match(r"#{1,6}\s", line) and line.strip("# \t\r"):
            return line.strip("# \t\r")
    return None
