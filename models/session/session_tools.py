"""The tools that a session offers its model, and those a person has allowed it for good (AGT-6, AGT-8)."""

from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import MAX_CARRIED_ITEMS, Compact, Items

FRESH_TURNS = 10
"""For so many turns a list is not read again because a segment begins: small windows begin one every few turns, and a
reading is an activity in the history."""


class ToolsState(Compact):
    """What the next run is handed of a session's tools."""

    specs: Annotated[Items[ToolSpec], Field(max_length=MAX_CARRIED_ITEMS)] | None = None
    """In the order the model is told of them; `None`: they were never read."""
    segment: int = 0
    """The segment they were read for; 0: they are to be read again."""
    due_turn: int = 0
    """The turn in which servers that could not be asked for their tools are asked again; 0: all could."""
    read_turn: int = 0
    """The turn in which they were read last."""
    allowances: Items[str] = []
    """Tools that a person has allowed for the session (AGT-8)."""


class SessionTools:
    """A session's tools: which, for which segment they were read, and when they are to be read again.

    Its changes are pieces of a change of the session, or come before a request: both raise the session's revision.
    """

    def __init__(self, state: ToolsState) -> None:
        self.state = state
        """What the next run is handed; replaced with every change."""
        self._specs_bytes = len(to_json(state.specs))

    @property
    def specs(self) -> list[ToolSpec] | None:
        """The tools in the order the model is told of them; `None`: they were never read."""
        return self.state.specs

    @property
    def allowances(self) -> list[str]:
        return self.state.allowances

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of what is carried to the next run; no allowances take none."""
        return self._specs_bytes + (len(to_json(self.allowances)) if self.allowances else 0)

    def find(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self.specs or [] if tool.name == name), None)

    def are_due(self, *, segment: int, turn: int) -> bool:
        """Return whether to read them before the next request: it begins a segment, or they are known to be wrong.

        >>> tools = SessionTools(ToolsState(segment=1, due_turn=3))
        >>> tools.are_due(segment=1, turn=2), tools.are_due(segment=1, turn=3), tools.are_due(segment=2, turn=2)
        (False, True, True)
        """
        return self.state.segment != segment or self._is_overdue(turn)

    def are_fresh(self, *, turn: int) -> bool:
        """Return whether they were read less than `FRESH_TURNS` turns ago, with nothing known against them.

        >>> SessionTools(ToolsState(segment=1, read_turn=5)).are_fresh(turn=14)
        True
        >>> SessionTools(ToolsState(segment=1, read_turn=5)).are_fresh(turn=15)
        False
        >>> SessionTools(ToolsState(segment=0, read_turn=5)).are_fresh(turn=6)
        False
        """
        is_trusted = self.state.segment > 0 and not self._is_overdue(turn)
        return is_trusted and turn - self.state.read_turn < FRESH_TURNS

    def _is_overdue(self, turn: int) -> bool:
        return 0 < self.state.due_turn <= turn

    def replace(self, specs: list[ToolSpec]) -> bool:
        """Offer `specs` from the next request on; return whether the model was offered others before.

        What was allowed for the session was this tool, not another of its name.
        """
        before = self.specs
        if specs == before:
            return False
        self._specs_bytes = len(to_json(specs))
        self._update(specs=specs)
        if before is None:
            return False
        known = {tool.name: tool for tool in before}
        changed = {tool.name for tool in specs if tool != known.get(tool.name)}
        self._update(allowances=[name for name in self.allowances if name not in changed])
        return True

    def note_reading(self, *, segment: int, turn: int, is_whole: bool) -> None:
        """Note that they were read now; if not whole, they are to be read again in the next turn."""
        self._update(segment=segment, read_turn=turn, due_turn=0 if is_whole else turn + 1)

    def keep(self, *, segment: int) -> None:
        """Offer the tools of the last segment in this one too."""
        self._update(segment=segment)

    def distrust(self) -> None:
        """Have them read again before the next request: a call met another tool than is known here."""
        self._update(segment=0)

    def allow(self, name: str) -> None:
        if name not in self.allowances:
            self._update(allowances=[*self.allowances, name])

    def end_allowances(self) -> None:
        self._update(allowances=[])

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)
