"""What the offline model says and which files its tools read, by the name of a script."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"

LINE = "A line of a file that an agent reads while it works.\n"
LINE_CHARS = 100

PROSE_TURNS = 240

LARGE_STEPS = 10
"""The model calls of a turn of 300 KB; the last one takes a minute."""

Response = dict[str, Any]

ANSWER: Response = {"text": "It is a file of equal lines, and there is one more in this folder."}
SEARCH: Response = {"calls": [{"name": "file_search", "args": {"query": "agent", "path": "notes.txt"}}]}


def write_scripts(workspace: Path, scripts: Path) -> None:
    """Write the files of the workspace, and a file for each script, which begins again at its end."""
    prose = _prose()
    (workspace / "notes.txt").write_text(LINE * 8)
    (workspace / "prose.txt").write_text("".join(f"{line}\n" for line in prose))
    by_name: dict[str, list[Response]] = {
        # Four model calls and three quick reads, with short texts.
        "four": [
            {"think": "I should read it.", "calls": [{"name": "file_read", "args": {"path": "notes.txt"}}]},
            {"think": "And what else is there?", "calls": [{"name": "file_list", "args": {}}]},
            {"calls": [_read("notes.txt", 2, 4)]},
            ANSWER,
        ],
        # The same in the language of people: no turn repeats a text of another one.
        "prose": [response for turn in range(PROSE_TURNS) for response in _prose_turn(prose, turn)],
        # The same with tools that are activities.
        "searches": [SEARCH, SEARCH, SEARCH, ANSWER],
        "tool": [{"calls": [{"name": "file_read", "args": {"path": "notes.txt"}}]}, ANSWER],
        "answer": [ANSWER],
        "large": [
            *(
                {"calls": [_read("prose.txt", at, at + 69) for at in range(step, step + 5)]}
                for step in range(1, LARGE_STEPS)
            ),
            {**ANSWER, "delay": 60},
        ],
    }
    for name, responses in by_name.items():
        (scripts / f"{name}.json").write_text(json.dumps({"repeat": True, "responses": responses}))


def _prose() -> list[str]:
    """Return the language of people, our own documentation, in lines of the same length."""
    words = " ".join(" ".join(path.read_text().split()) for path in sorted(DOCS.glob("*.md")))
    return [f"{line:{LINE_CHARS}}" for line in wrap(words.encode("ascii", "ignore").decode(), LINE_CHARS)]


def _prose_turn(prose: Sequence[str], turn: int) -> list[Response]:
    """Return a turn that reads 3 KB and writes 700 characters."""
    texts = [prose[(turn * 7 + number) % len(prose)] for number in range(7)]
    places = [1 + (turn * 30 + number * 10) % (len(prose) - 10) for number in range(3)]
    steps = zip(texts, places, strict=False)
    calls = [{"text": text, "calls": [_read("prose.txt", at, at + 9)]} for text, at in steps]
    return [*calls, {"text": " ".join(texts[3:])}]


def _read(path: str, first: int, last: int) -> dict[str, Any]:
    return {"name": "file_read", "args": {"path": path, "first_line": first, "last_line": last}}
