"""The law of SES-12, written a second time and without any of our models, so that it can judge the first one.

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
