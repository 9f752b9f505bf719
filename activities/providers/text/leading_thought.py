r"""Thinking that a model writes before its answer, as `<think>…</think>`, told apart while it is written (CTX-13).

Models that think write their thinking into the text, and servers without a parser for it leave it there. What counts is
a leading `<think>` that is closed, or that the answer was cut in: elsewhere it is text like any other.
"""

from collections.abc import Iterator
from typing import Literal

from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.protocol import Delta

OPENED = "<think>"
CLOSED = "</think>"


class LeadingThought:
    r"""A text as it comes in, its thinking apart.

    >>> text = LeadingThought()
    >>> text.add("<thi"), text.add("nk>Left first.</th")
    ([], [Delta(kind='think', text='Left first.')])
    >>> text.add("ink>"), text.add("\n\nI look.")
    ([], [Delta(kind='respond', text='I look.')])
    >>> text.finish(is_cut=False)
    >>> text.thought, text.said, text.lead
    ('Left first.', 'I look.', '<think>Left first.</think>\n\n')
    """

    def __init__(self) -> None:
        self._state: Literal["opening", "thinking", "between", "saying"] = "opening"
        self._pending = ""
        """What may yet become a tag, or the space around one."""
        self._lead: list[str] = []
        self._thought: list[str] = []
        self._said: list[str] = []

    def add(self, piece: str) -> list[Delta]:
        """Take the next piece; return what there is to show of it."""
        self._pending += piece
        return list(self._settled())

    def finish(self, *, is_cut: bool) -> None:
        """Take it that no more comes; of an answer that was cut, thinking need not be closed."""
        rest, self._pending = self._pending, ""
        if self._state == "thinking" and is_cut:
            self._thought.append(rest)
        elif self._state in ("opening", "thinking"):
            self._said, self._thought, self._lead = [*self._lead, *self._thought, rest], [], []
        else:
            self._lead.append(rest)

    @property
    def thought(self) -> str:
        """The thinking; to be asked after `finish`, as all of it."""
        return join_pieces(self._thought).strip()

    @property
    def said(self) -> str:
        return join_pieces(self._said)

    @property
    def lead(self) -> str:
        """All that came before the text, tags and space too: as it goes back to the model."""
        return join_pieces(self._lead)

    def _settled(self) -> Iterator[Delta]:
        if self._state == "opening":
            self._open()
        if self._state == "thinking" and (thought := self._think()):
            yield Delta("think", thought)
        if self._state == "between":
            self._go_on()
        if self._state == "saying" and self._pending:
            said, self._pending = self._pending, ""
            self._said.append(said)
            yield Delta("respond", said)

    def _open(self) -> None:
        begun = self._pending.lstrip()
        if begun.startswith(OPENED):
            before = len(self._pending) - len(begun) + len(OPENED)
            self._lead.append(self._pending[:before])
            self._pending, self._state = self._pending[before:], "thinking"
        elif not OPENED.startswith(begun):
            self._state = "saying"

    def _think(self) -> str:
        thought, closed, rest = self._pending.partition(CLOSED)
        if closed:
            self._pending, self._state = rest, "between"
            self._lead += [*self._thought, thought, closed]
        else:
            kept = next(length for length in range(len(CLOSED) - 1, -1, -1) if thought.endswith(CLOSED[:length]))
            thought, self._pending = thought[: len(thought) - kept], thought[len(thought) - kept :]
        self._thought.append(thought)
        return thought

    def _go_on(self) -> None:
        text = self._pending.lstrip()
        self._lead.append(self._pending[: len(self._pending) - len(text)])
        self._pending = text
        if text:
            self._state = "saying"
