r"""Separating the thinking that a model writes before its answer, as `<think>…</think>`, while it arrives (CTX-13).

Servers without a parser for it leave the thinking in the text. Only a leading `<think>` counts that is closed, or in
which the answer was cut; anywhere else it is ordinary text.
"""

from collections.abc import Iterator
from typing import Literal

from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.protocol import Delta

OPENED = "<think>"
CLOSED = "</think>"


class LeadingThought:
    r"""A text while it arrives, with its thinking separated.

    >>> text = LeadingThought()
    >>> text.add("<thi"), text.add("nk>Left first.</th")
    ([], [Delta(kind='think', text='Left first.')])
    >>> text.add("ink>"), text.add("\n\nI look.")
    ([], [Delta(kind='respond', text='I look.')])
    >>> text.finish(is_cut=False)
    >>> text.thought, text.text, text.lead
    ('Left first.', 'I look.', '<think>Left first.</think>\n\n')
    """

    def __init__(self) -> None:
        self._state: Literal["opening", "thinking", "between", "saying"] = "opening"
        self._pending = ""
        """Text that may become a tag, or the space around one."""
        self._lead: list[str] = []
        self._thought: list[str] = []
        self._text: list[str] = []

    def add(self, piece: str) -> list[Delta]:
        """Add the next piece; return its deltas."""
        self._pending += piece
        return list(self._deltas())

    def finish(self, *, is_cut: bool) -> None:
        """End the text. If the answer was cut, thinking may be unclosed."""
        rest, self._pending = self._pending, ""
        if self._state == "thinking" and is_cut:
            self._thought.append(rest)
        elif self._state in ("opening", "thinking"):
            self._text, self._thought, self._lead = [*self._lead, *self._thought, rest], [], []
        else:
            self._lead.append(rest)

    @property
    def thought(self) -> str:
        """The thinking. Valid after `finish`, like the properties below."""
        return join_pieces(self._thought).strip()

    @property
    def text(self) -> str:
        return join_pieces(self._text)

    @property
    def lead(self) -> str:
        """Everything before the text, including tags and space, in the form that goes back to the model."""
        return join_pieces(self._lead)

    def _deltas(self) -> Iterator[Delta]:
        if self._state == "opening":
            self._open()
        if self._state == "thinking" and (thought := self._think()):
            yield Delta("think", thought)
        if self._state == "between":
            self._skip_space()
        if self._state == "saying" and self._pending:
            text, self._pending = self._pending, ""
            self._text.append(text)
            yield Delta("respond", text)

    def _open(self) -> None:
        stripped = self._pending.lstrip()
        if stripped.startswith(OPENED):
            before = len(self._pending) - len(stripped) + len(OPENED)
            self._lead.append(self._pending[:before])
            self._pending, self._state = self._pending[before:], "thinking"
        elif not OPENED.startswith(stripped):
            self._state = "saying"

    def _think(self) -> str:
        thought, closing_tag, rest = self._pending.partition(CLOSED)
        if closing_tag:
            self._pending, self._state = rest, "between"
            self._lead += [*self._thought, thought, closing_tag]
        else:
            pending_length = next(
                length for length in range(len(CLOSED) - 1, -1, -1) if thought.endswith(CLOSED[:length])
            )
            thought, self._pending = thought[: len(thought) - pending_length], thought[len(thought) - pending_length :]
        self._thought.append(thought)
        return thought

    def _skip_space(self) -> None:
        text = self._pending.lstrip()
        self._lead.append(self._pending[: len(self._pending) - len(text)])
        self._pending = text
        if text:
            self._state = "saying"
