"""The tools that a session offers its model, and those that a person has allowed for the session (AGT-6, AGT-8)."""

from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from turnkeeper.models.transcript.model_call import ServerText, ToolSpec
from turnkeeper.models.wire import MAX_CARRIED_ITEMS, Compact, Items

INSTRUCTIONS_HEADING = "# Instructions of the tool servers"

FRESH_TURNS = 10
"""Turns for which a tool list stays fresh, although new segments begin. Small windows begin one every few turns, and
each reload is an activity in the history."""


class ToolsState(Compact):
    """The carried part of a session's tools."""

    specs: Annotated[Items[ToolSpec], Field(max_length=MAX_CARRIED_ITEMS)] | None = None
    """In the order the model sees them; `None`: never loaded."""
    segment: int = 0
    """The segment they were loaded for; 0: reload them."""
    due_turn: int = 0
    """The turn in which unreachable servers are asked again; 0: all were reachable."""
    read_turn: int = 0
    """The turn in which they were last loaded."""
    allowances: Items[str] = []
    """Tools that a person has allowed for the session (AGT-8)."""
    denied: Items[str] = []
    """Tools that are not offered, since the policy denies them."""
    instructions: Items[ServerText] = []
    """What servers say to models about their tools."""
    absent: Items[ServerText] = []
    """Servers without tools, or with their earlier ones only, and why."""


class SessionTools:
    """A session's tools, and when to reload them.

    Its methods are called in a change of the session, or before a request, which raise the session's revision.
    """

    def __init__(self, state: ToolsState) -> None:
        self.state = state
        """The carried state; replaced with every change."""
        self._specs_bytes = _bytes_of(state)

    @property
    def specs(self) -> list[ToolSpec] | None:
        """The tools in the order the model sees them; `None`: never loaded."""
        return self.state.specs

    @property
    def allowances(self) -> list[str]:
        return self.state.allowances

    @property
    def instructions(self) -> str:
        """What the servers of offered tools say about them, for the system prompt; empty if they say nothing."""
        servers = {tool.server for tool in self.specs or [] if tool.name not in self.state.denied}
        texts = [f"## {one.server}\n\n{one.text}" for one in self.state.instructions if one.server in servers]
        return "\n\n".join([INSTRUCTIONS_HEADING, *texts]) if texts else ""

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; an empty list of allowances counts 0."""
        return self._specs_bytes + (len(to_json(self.allowances)) if self.allowances else 0)

    def is_reload_due(self, *, segment: int, turn: int) -> bool:
        """Return whether to reload them before the next request: it begins a segment, or a server was unreachable.

        >>> tools = SessionTools(ToolsState(segment=1, due_turn=3))
        >>> [tools.is_reload_due(segment=segment, turn=turn) for segment, turn in ((1, 2), (1, 3), (2, 2))]
        [False, True, True]
        """
        return self.state.segment != segment or self._is_overdue(turn)

    def is_fresh(self, *, turn: int) -> bool:
        """Return whether they were loaded less than `FRESH_TURNS` turns ago and are still valid.

        >>> SessionTools(ToolsState(segment=1, read_turn=5)).is_fresh(turn=14)
        True
        >>> SessionTools(ToolsState(segment=1, read_turn=5)).is_fresh(turn=15)
        False
        >>> SessionTools(ToolsState(segment=0, read_turn=5)).is_fresh(turn=6)
        False
        """
        is_trusted = self.state.segment > 0 and not self._is_overdue(turn)
        return is_trusted and turn - self.state.read_turn < FRESH_TURNS

    def _is_overdue(self, turn: int) -> bool:
        return 0 < self.state.due_turn <= turn

    def replace(self, specs: list[ToolSpec], instructions: list[ServerText]) -> bool:
        """Offer `specs` from the next request on; return whether the model had others before, or other instructions.

        A changed tool loses its allowance.
        """
        before, instructions_before = self.specs, self.state.instructions
        if specs == before and instructions == instructions_before:
            return False
        self._update(specs=specs, instructions=instructions)
        self._specs_bytes = _bytes_of(self.state)
        if before is None:
            return False
        before_by_name = {tool.name: tool for tool in before}
        changed = {tool.name for tool in specs if tool != before_by_name.get(tool.name)}
        self._update(allowances=[name for name in self.allowances if name not in changed])
        return True

    def deny(self, names: list[str]) -> bool:
        """Offer all tools but `names`; return whether that changes what is offered."""
        if names == self.state.denied:
            return False
        self._update(denied=names)
        return True

    def note_absent(self, absent: list[ServerText]) -> None:
        """Record which servers have no tools now, and why."""
        self._update(absent=absent)

    def note_loaded(self, *, segment: int, turn: int, is_complete: bool) -> None:
        """Record that they were loaded now; if incomplete, they are reloaded in the next turn."""
        self._update(segment=segment, read_turn=turn, due_turn=0 if is_complete else turn + 1)

    def keep_for_segment(self, *, segment: int) -> None:
        """Keep the present tools for this segment."""
        self._update(segment=segment)

    def invalidate(self) -> None:
        """Reload them before the next request: a call has met a changed tool."""
        self._update(segment=0)

    def allow(self, name: str) -> None:
        if name not in self.allowances:
            self._update(allowances=[*self.allowances, name])

    def end_allowances(self) -> None:
        self._update(allowances=[])

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)


def _bytes_of(state: ToolsState) -> int:
    """Return the JSON bytes of what is replaced with the list."""
    return len(to_json(state.specs)) + (len(to_json(state.instructions)) if state.instructions else 0)
