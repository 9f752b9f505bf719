"""The tools that a session offers its model, which of them may run, and what the model has refused.

The offer is AGT-6. A policy has patterns and decisions, of which the first match counts; a person may allow more
(AGT-8). Refused parts, and the longest accepted request, are AGT-9.
"""

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import to_json

from turnkeeper.models.context.model_view import ModelView
from turnkeeper.models.limits import TOOL_LIST_BYTES
from turnkeeper.models.transcript.model_call import RefusedPart, RequestHead, ServerText, ToolList, ToolSpec
from turnkeeper.models.wire import MAX_CARRIED_ITEMS, MAX_KEYS, Compact, Items, few_keys

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
    """The servers' instructions for models."""
    absent: Items[ServerText] = []
    """Servers without tools, or with their earlier ones only, and why."""

    def is_reload_due(self, *, segment: int, turn: int) -> bool:
        """Return whether to reload them before the next request: it begins a segment, or a server was unreachable.

        >>> tools = ToolsState(segment=1, due_turn=3)
        >>> [tools.is_reload_due(segment=segment, turn=turn) for segment, turn in ((1, 2), (1, 3), (2, 2))]
        [False, True, True]
        """
        return self.segment != segment or 0 < self.due_turn <= turn

    def is_fresh(self, *, turn: int) -> bool:
        """Return whether they were loaded less than `FRESH_TURNS` turns ago and are still valid.

        >>> [ToolsState(segment=1, read_turn=5).is_fresh(turn=turn) for turn in (14, 15)]
        [True, False]
        """
        is_trusted = self.segment > 0 and not 0 < self.due_turn <= turn
        return is_trusted and turn - self.read_turn < FRESH_TURNS


class SessionTools:
    """A session's tools: those of the worker, and the session's own.

    `offer`, `deny` and `note_absent` raise the session's revision. All other methods are called in a change of the
    session, or before a request, which raise it themselves.
    """

    def __init__(
        self,
        state: ToolsState,
        view: ModelView,
        *,
        own: Callable[[], list[ToolSpec]],
        unoffered: Callable[[], list[ToolSpec]],
        on_change: Callable[[], object],
    ) -> None:
        """`own` returns the tools that the session runs itself; another list opens a segment of `view`.

        `unoffered` returns those that it runs, though it does not offer them now: their results say why.
        """
        self.state = state
        """The carried state; replaced with every change."""
        self._view = view
        self._own = own
        self._unoffered = unoffered
        self._on_change = on_change
        self._specs_bytes = _bytes_of(state)

    @property
    def specs(self) -> list[ToolSpec] | None:
        """The worker's tools in the order the model sees them; `None`: never loaded."""
        return self.state.specs

    @property
    def all(self) -> list[ToolSpec]:
        """All tools: those of the worker, then the session's own."""
        return [*(self.specs or []), *self._own()]

    @property
    def offered(self) -> list[ToolSpec]:
        """The tools in the order the model is told of them, without those that the policy denies (AGT-8)."""
        denied = set(self.state.denied)
        return [tool for tool in self.all if tool.name not in denied]

    @property
    def allowances(self) -> list[str]:
        return self.state.allowances

    @property
    def instructions(self) -> str:
        """The instructions of the servers of offered tools, for the system prompt; empty if there are none."""
        servers = {tool.server for tool in self.specs or [] if tool.name not in self.state.denied}
        texts = [f"## {one.server}\n\n{one.text}" for one in self.state.instructions if one.server in servers]
        return "\n\n".join(["# Instructions of the tool servers", *texts]) if texts else ""

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; an empty list of allowances counts 0."""
        return self._specs_bytes + (len(to_json(self.allowances)) if self.allowances else 0)

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool, offered or not."""
        return next((tool for tool in [*self.all, *self._unoffered()] if tool.name == name), None)

    def offer(
        self,
        specs: list[ToolSpec],
        *,
        instructions: list[ServerText] | None = None,
        turn: int,
        is_complete: bool = True,
    ) -> None:
        """Offer `specs` from the next request on: for this segment, or for this turn if `is_complete` is false (AGT-6).

        A changed list opens a new segment, and a changed tool loses its allowance. With `None`, the servers'
        `instructions` stay.
        """
        before, state = self.specs, self.state
        instructions = state.instructions if instructions is None else instructions
        if specs != before or instructions != state.instructions:
            self._update(specs=specs, instructions=instructions)
            self._specs_bytes = _bytes_of(self.state)
            if before is not None:
                before_by_name = {tool.name: tool for tool in before}
                changed = {tool.name for tool in specs if tool != before_by_name.get(tool.name)}
                self._update(allowances=[name for name in self.allowances if name not in changed])
                self._view.open_segment()
                self._on_change()
        self._update(segment=self._view.segment, read_turn=turn, due_turn=0 if is_complete else turn + 1)

    def deny(self, names: list[str], *, is_first: bool) -> None:
        """Offer all tools but `names` from the next request on (AGT-8).

        A change opens a new segment, unless it `is_first`: no request had tools before.
        """
        if names == self.state.denied:
            return
        self._update(denied=names)
        if not is_first:
            self._view.open_segment()
            self.keep_for_segment()
            self._on_change()

    def note_absent(self, absent: list[ServerText]) -> None:
        """Record which tool servers have no tools now, or their earlier ones only, and why."""
        if absent != self.state.absent:
            self._update(absent=absent)
            self._on_change()

    def keep_for_segment(self) -> None:
        """Keep the present tools for the present segment."""
        self._update(segment=self._view.segment)

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


def merge_tools(listed: ToolList, earlier: list[ToolSpec]) -> list[ToolSpec]:
    """Return the `listed` tools, with the `earlier` ones of unreachable servers.

    Those keep their places, so that an unchanged list stays the same for the model. If there is no room for all, they
    are dropped.

    >>> a, b, c = ToolSpec(name="a"), ToolSpec(name="b", server="down"), ToolSpec(name="c", server="up")
    >>> merge_tools(ToolList(tools=[a, c], unread=["down"]), [a, b, c]) == [a, b, c]
    True
    >>> merge_tools(ToolList(tools=[a, b], unread=["down"]), [a]) == [a, b]
    True
    """
    staying = [tool for tool in earlier if tool.server in listed.unread]
    servers, names = {tool.server for tool in staying}, {tool.name for tool in staying}
    tools = [tool for tool in listed.tools if tool.server not in servers and tool.name not in names]
    before: ToolSpec | None = None
    for tool in earlier:
        if tool.server in servers:
            tools.insert(_after(before, tools), tool)
        before = tool
    return tools if sum(map(carried_bytes, tools)) <= TOOL_LIST_BYTES else listed.tools


def merge_instructions(listed: ToolList, earlier: list[ServerText]) -> list[ServerText]:
    """Return the listed servers' instructions, with the `earlier` ones of unreachable servers."""
    staying = [one for one in earlier if one.server in listed.unread]
    servers = {one.server for one in staying}
    texts = [*staying, *(one for one in listed.instructions if one.server not in servers)]
    return sorted(texts, key=lambda one: one.server)


def tools_digest(tools: list[ToolSpec], instructions: Sequence[ServerText] = ()) -> str:
    """Return the digest of these tools and instructions in this order."""
    return sha256("\n".join(one.model_dump_json() for one in (*tools, *instructions)).encode()).hexdigest()[:16]


def carried_bytes(tool: ToolSpec) -> int:
    """Return the JSON bytes of a tool in a session's state."""
    return len(tool.model_dump_json().encode())


def _after(before: ToolSpec | None, tools: list[ToolSpec]) -> int:
    names = [tool.name for tool in tools]
    if before is None:
        return 0
    return names.index(before.name) + 1 if before.name in names else len(names)


# ---- refused parts

MAX_REFUSED_PARTS = 50
"""Parts that a session carries; beyond that, the oldest is forgotten, and learned again at the cost of a request."""


class RefusalState(Compact):
    """The carried part: it is about this `model` with the list of `tools` of this digest."""

    model: str = ""
    tools: str = ""
    parts: Annotated[Items[RefusedPart], Field(max_length=MAX_REFUSED_PARTS)] = []
    accepted_tokens: int = 0
    """The estimated size of the largest request that was answered; 0: none was."""
    state_was_refused: bool = False
    """Whether the vendor has refused its own blocks of earlier steps."""
    was_reset: bool = False
    """Whether the tools were listed again because of a refusal, and no request was answered since."""


class SessionRefusals:
    """The parts that a session's model has refused; forgotten when the model or the tools change.

    Its methods are called before and after a request, in a change of the session that raises its revision.
    """

    def __init__(self, state: RefusalState) -> None:
        self.state = state
        """The carried state; replaced with every change."""
        self._head: RequestHead | None = None

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; without refused parts it is part of the envelope."""
        return len(to_json(self.state.parts)) if self.state.parts else 0

    def parts_of(self, model: str, head: RequestHead) -> list[RefusedPart]:
        """Return what to leave out of a request to the `model`."""
        self._begin(model, head)
        return self.state.parts

    def is_largest(self, model: str, head: RequestHead, *, tokens: int) -> bool:
        """Return whether the model has answered shorter requests, but none of `tokens`.

        >>> refusals, head = SessionRefusals(RefusalState()), RequestHead()
        >>> refusals.is_largest("m", head, tokens=5)
        False
        >>> refusals.note_answer("m", head, tokens=5, left_out=[])
        >>> [refusals.is_largest("m", head, tokens=tokens) for tokens in (5, 6)]
        [False, True]
        """
        self._begin(model, head)
        return 0 < self.state.accepted_tokens < tokens

    def note_answer(self, model: str, head: RequestHead, *, tokens: int, left_out: list[RefusedPart]) -> None:
        """Note that a request was answered, and what was left out of it for the first time.

        State that is refused is gone, since a segment without it begins. It is left out from now on if the vendor
        refuses state again: some take none back.
        """
        self._begin(model, head)
        is_state_refused = any(part.kind == "state" for part in left_out)
        lasting = [part for part in left_out if part.kind != "state" or self.state.state_was_refused]
        parts = {part.key: part for part in [*self.state.parts, *lasting]}
        self._update(
            parts=list(parts.values())[-MAX_REFUSED_PARTS:],
            accepted_tokens=max(self.state.accepted_tokens, tokens),
            state_was_refused=is_state_refused or self.state.state_was_refused,
            was_reset=False,
        )

    def note_reset(self) -> bool:
        """Note that tools and state are renewed because of a refusal; return whether that is due: it is once."""
        is_due = not self.state.was_reset
        self._update(was_reset=True)
        return is_due

    def _begin(self, model: str, head: RequestHead) -> None:
        """Forget what is about another model or other tools."""
        if head is self._head and model == self.state.model:
            return
        self._head = head
        tools = tools_digest(head.tools)
        if (model, tools) != (self.state.model, self.state.tools):
            self.state = RefusalState(model=model, tools=tools, was_reset=self.state.was_reset)

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)


# ---- the policy

ToolDecision = Literal["allow", "ask", "deny"]
"""`ask`: a person decides on each call of the tool."""

_STRICTNESS: Final[tuple[ToolDecision, ...]] = ("allow", "ask", "deny")


SERVER_SEPARATOR = "__"
"""Between the name of a server and that of its tool."""

ToolPolicy = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=128)], ToolDecision],
    BeforeValidator(few_keys),
    Field(max_length=MAX_KEYS),
]
"""Patterns (`*`, `?`, `[abc]`) to decisions, in order of precedence.

`server__tool` has a pattern for the server and one for its tool; any other pattern is for built-in tools. For foreign
tools, one without a server is only ever a restriction, except `*`, which is for every tool; of several, the strictest
counts."""


ToolNames = Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=MAX_KEYS)]
"""The only tools that a session has: names and patterns, with or without a server as in a `ToolPolicy`."""


def decide(
    policy: dict[str, ToolDecision],
    tool: ToolSpec,
    *,
    only: Sequence[str] | None = None,
    unattended: bool = False,
    allowed: Collection[str] = (),
) -> ToolDecision:
    """Return the decision of the first matching pattern; without a match, read-only tools are allowed, others ask.

    A foreign server chooses the names of its tools, but not its own, which is in the operator's configuration. So a
    pattern makes a foreign tool's decision milder only if it names the server, or no name at all. Of the others before
    it, the strictest counts, whatever their order.

    With `only`, every other tool is denied. A tool in `allowed` was allowed for the session: `ask` becomes `allow`,
    `deny` stays. In an `unattended` session nobody can be asked, so the default is `deny`; an `ask` in the policy
    stays.

    >>> decide({"file_*": "deny"}, ToolSpec(name="file_read", effect="read"))
    'deny'
    >>> write = ToolSpec(name="file_write", effect="idempotent", built_in=True)
    >>> decide({}, ToolSpec(name="look", effect="read")), decide({}, write)
    ('allow', 'ask')
    >>> decide({"mail__*": "deny", "*": "allow"}, ToolSpec(name="send", server="mail"))
    'deny'
    >>> decide({"mail__*": "allow", "send": "allow"}, ToolSpec(name="mail__send", server="evil"))
    'ask'
    >>> decide({"send_*": "allow", "s*": "deny", "*": "allow"}, ToolSpec(name="send_it", server="mail"))
    'deny'
    >>> decide({"my shop__pay": "allow"}, ToolSpec(name="my_shop__pay", server="my shop", own_name="pay"))
    'allow'
    >>> decide({}, ToolSpec(name="now", effect="read"), only=["file_*", "issues__*"])
    'deny'
    >>> pay = ToolSpec(name="pay")
    >>> decide({}, pay, unattended=True), decide({"*": "ask"}, pay, unattended=True), decide({}, pay, allowed=["pay"])
    ('deny', 'ask', 'allow')
    """
    if only is not None and not any(_is_for(pattern, tool) for pattern in only):
        return "deny"
    decision, restrictions = _default(tool, unattended=unattended), list[ToolDecision]()
    for pattern, listed in policy.items():
        if _is_for(pattern, tool):
            decision = listed
            break
        if any(fnmatchcase(name, pattern) for name in (_own_name(tool), tool.name)):
            restrictions.append(listed)
    decision = max([decision, *restrictions], key=_STRICTNESS.index)
    return "allow" if decision == "ask" and tool.name in allowed else decision


def missing_tools(names: Sequence[str], tools: Sequence[ToolSpec]) -> list[str]:
    """Return the names of servers' tools that are not among `tools`; patterns may match nothing.

    >>> look = ToolSpec(name="look", server="shop", own_name="look")
    >>> missing_tools(["shop__look", "shop__pay", "shop__p*", "now"], [look])
    ['shop__pay']
    """
    exact = [name for name in names if SERVER_SEPARATOR in name and not set("*?[") & set(name)]
    return [name for name in exact if not any(_is_for(name, tool) for tool in tools)]


def _is_for(pattern: str, tool: ToolSpec) -> bool:
    """Return whether the pattern is for this tool of this server, whatever other servers call theirs."""
    if pattern == "*" or not tool.server:
        return fnmatchcase(tool.name, pattern)
    # The name of a server never has two underscores: `mcp_config.py` sees to that.
    server, separator, name = pattern.partition(SERVER_SEPARATOR)
    return bool(separator) and fnmatchcase(tool.server, server) and fnmatchcase(_own_name(tool), name)


def _own_name(tool: ToolSpec) -> str:
    """Return the tool's name at its server: sessions put the server's name before it where several offer the same."""
    return tool.own_name or tool.name.removeprefix(f"{tool.server}{SERVER_SEPARATOR}")


def _default(tool: ToolSpec, *, unattended: bool) -> ToolDecision:
    if tool.effect == "read":
        return "allow"
    return "deny" if unattended else "ask"
