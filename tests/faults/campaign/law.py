"""The laws of SES-12 and AGT-5, written a second time and without any of our models, so that they judge the first ones.

reset     drop all that is held
updated   replace the turns of those ids
new       append

>>> copy = LawfulCopy()
>>> standing = {"reset": False, "updated_messages": [], "last_seen_message_id": "a", "revision": 1}
>>> copy.apply({**standing, "new_messages": [{"id": "a", "text": "?"}]})
>>> copy.apply({**standing, "new_messages": [], "updated_messages": [{"id": "a", "text": "!"}], "revision": 2})
>>> copy.turns, copy.cursor, copy.problems
([{'id': 'a', 'text': '!'}], {'last_seen_message_id': 'a', 'since_revision': 2}, [])
"""

import json
from typing import Any

FINAL_STATUSES = ("ended", "cancelled", "terminated")
"""No session of a campaign is ever closed."""


class LawfulCopy:
    """A client's copy of a conversation, as it came over the wire."""

    def __init__(self) -> None:
        self.cursor: dict[str, Any] = {}
        self.resets = 0
        self.problems: list[str] = []
        self._turns: dict[str, str] = {}
        """As JSON: as objects, thousands of turns take gigabytes."""

    @property
    def turns(self) -> list[dict[str, Any]]:
        return [json.loads(turn) for turn in self._turns.values()]

    def apply(self, update: dict[str, Any]) -> None:
        if update.get("status") in FINAL_STATUSES:
            self.problems.append(f"the session was {update['status']!r} at revision {update['revision']}")
        if update["reset"]:
            self.resets += 1
            self._turns = {}
        for turn in update["updated_messages"]:
            if turn["id"] not in self._turns:
                self.problems.append(f"turn {turn['id']!r} was updated, and had never been new")
            else:
                self._turns[turn["id"]] = json.dumps(turn)
        for turn in update["new_messages"]:
            if turn["id"] in self._turns:
                self.problems.append(f"turn {turn['id']!r} was new twice without a reset")
            self._turns[turn["id"]] = json.dumps(turn)
        self.cursor = {"last_seen_message_id": update["last_seen_message_id"], "since_revision": update["revision"]}


class PartialAnswers:
    """What a watcher is shown of answers before they are recorded: each is the beginning of the recorded text.

    Text that came twice, or that a second attempt had not replaced, is not. Each attempt of a script writes the same.

    >>> answers = PartialAnswers()
    >>> tag = {"message_id": "a", "turn": 1, "step": 1, "request": 1, "attempt": 1}
    >>> answers.grow({**tag, "fresh": True, "parts": [{"index": 0, "kind": "respond", "text": "Hel"}]})
    >>> answers.grow({**tag, "fresh": False, "parts": [{"index": 0, "kind": "respond", "text": "lo"}]})
    >>> turn = {"id": "a", "reasoning_trajectory": {"steps": [{"kind": "model", "number": 1, "text": "Hello!"}]}}
    >>> answers.judge([turn])
    >>> answers.judged, answers.problems
    (1, [])
    """

    def __init__(self) -> None:
        self.judged = 0
        """How many recorded answers it had been shown something of."""
        self.problems: list[str] = []
        self._tag: tuple[Any, ...] = ()
        self._parts: dict[int, dict[str, Any]] = {}

    def grow(self, partial: dict[str, Any]) -> None:
        tag = tuple(partial[name] for name in ("message_id", "step", "turn", "request", "attempt"))
        if partial["fresh"]:
            self._tag, self._parts = tag, {}
        elif tag != self._tag:
            self.problems.append(f"{tag} grew, and it had been shown {self._tag}")
        for part in partial["parts"]:
            before = self._parts.get(part["index"], {"text": ""})["text"]
            self._parts[part["index"]] = {"kind": part["kind"], "text": before + part["text"]}

    def judge(self, turns: list[dict[str, Any]]) -> None:
        """Compare what was shown with the step that is recorded now, if it is."""
        for turn in turns:
            steps = (turn.get("reasoning_trajectory") or {"steps": []})["steps"]
            for step in steps:
                if step["kind"] == "model" and (turn["id"], step["number"]) == self._tag[:2]:
                    recorded = step.get("text") or turn.get("agent_message") or ""
                    self._compare(recorded, is_interrupted=step.get("interrupted", False))

    def _compare(self, recorded: str, *, is_interrupted: bool) -> None:
        text = "".join(part["text"] for part in self._parts.values() if part["kind"] == "respond")
        # What is recorded of a stopped answer may be of a second attempt, which had written less.
        is_less = is_interrupted and text.startswith(recorded.rstrip())
        if not (recorded.startswith(text.rstrip()) or is_less):
            self.problems.append(f"{self._tag} was shown as {text[-200:]!r}, and is {recorded[-200:]!r}")
        self.judged += 1
        self._tag, self._parts = (), {}
