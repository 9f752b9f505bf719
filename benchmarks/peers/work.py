"""The work of a turn, the same for all: prompt, tool calls, answer. The model is fake."""

import os

TOOL_CALLS = int(os.environ.get("BENCH_TOOL_CALLS", "3"))
"""Tool calls of a turn, one after the other; there is one more model call."""

MODEL_SECONDS = float(os.environ.get("BENCH_MODEL_SECONDS", "0"))
"""How long the model is silent before each response, where actions are counted."""

TOOL = "file_read"
ARGUMENTS = {"path": "notes.txt"}
MODEL = "fake"


def sized(text: str, length: int) -> str:
    """Return `text`, repeated up to `length` characters.

    >>> sized("ab ", 8)
    'ab ab ab'
    """
    return (text * length)[:length]


CALL_TEXT = sized("I should read the file before I say anything about it. ", 190)
"""The text beside a tool call."""

RESULT = sized("A line of a file that an agent reads while it works.\n", 2_000)
ANSWER = sized("It is a file of equal lines, and this is what they mean. ", 1_000)


def prompt(turn: int) -> str:
    return sized(f"Question {turn}: what is in the file, and what does it mean for us? ", 1_000)


def is_answer_due(tool_results: int) -> bool:
    """Return whether the model answers a request with `tool_results` tool results since the last prompt."""
    return tool_results >= TOOL_CALLS
