"""The tools that a session offers its model, and those a person has allowed it for good (AGT-6, AGT-8)."""

from pydantic_core import to_json

from turnkeeper.models.transcript.model_call import ToolSpec

FRESH_TURNS = 10
"""For so many turns a list is not read again because a segment begins: small windows begin one every few turns, and a
reading is an activity in the history."""


class SessionTools:
    """A session's tools: which, for which segment they were read, and when they are to be read again."""

    def __init__(
        self,
        specs: list[ToolSpec] | None,
        *,
        segment: int = 0,
        due_turn: int = 0,
        read_turn: int = 0,
        allowances: list[str] | None = None,
    ) -> None:
        """Begin with `specs`, which were read for `segment` in the turn `read_turn`; `None`: they were never read.

        `due_turn`: the number of the turn in which they are to be read again; 0: in none. `allowances` are the tools
        that a person has allowed for the session.
        """
        self._specs = specs
        self._specs_bytes = len(to_json(specs))
        self.segment = segment
        self.due_turn = due_turn
        self.read_turn = read_turn
        self.allowances = allowances or []
        """The list is replaced, never changed."""

    @property
    def specs(self) -> list[ToolSpec] | None:
        """The tools in the order the model is told of them; `None`: they were never read."""
        return self._specs

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of what is carried to the next run; no allowances take none."""
        return self._specs_bytes + (len(to_json(self.allowances)) if self.allowances else 0)

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of that name, if there is one."""
        return next((tool for tool in self._specs or [] if tool.name == name), None)

    def are_due(self, *, segment: int, turn: int) -> bool:
        """Tell whether they are to be read before the next request: it begins a segment, or they are known to be wrong.

        >>> tools = SessionTools([], segment=1, due_turn=3)
        >>> tools.are_due(segment=1, turn=2), tools.are_due(segment=1, turn=3), tools.are_due(segment=2, turn=2)
        (False, True, True)
        """
        return self.segment != segment or 0 < self.due_turn <= turn

    def are_fresh(self, *, turn: int) -> bool:
        """Tell whether they were read less than `FRESH_TURNS` turns ago, with nothing known against them.

        >>> SessionTools([], segment=1, read_turn=5).are_fresh(turn=14)
        True
        >>> SessionTools([], segment=1, read_turn=5).are_fresh(turn=15)
        False
        >>> SessionTools([], segment=0, read_turn=5).are_fresh(turn=6)
        False
        """
        is_trusted = self.segment > 0 and not 0 < self.due_turn <= turn
        return is_trusted and turn - self.read_turn < FRESH_TURNS

    def replace(self, specs: list[ToolSpec]) -> bool:
        """Offer `specs` from the next request on; tell whether the model was offered others before.

        What was allowed for the session was this tool, not another of its name.
        """
        before = self._specs
        if specs == before:
            return False
        self._specs, self._specs_bytes = specs, len(to_json(specs))
        if before is None:
            return False
        known = {tool.name: tool for tool in before}
        changed = {tool.name for tool in specs if tool != known.get(tool.name)}
        self.allowances = [name for name in self.allowances if name not in changed]
        return True

    def distrust(self) -> None:
        """Have them read again before the next request: a call met another tool than is known here."""
        self.segment = 0

    def allow(self, name: str) -> None:
        """Note that a person has allowed a tool for the session."""
        if name not in self.allowances:
            self.allowances = [*self.allowances, name]

    def end_allowances(self) -> None:
        """Forget what was allowed for the session."""
        self.allowances = []
