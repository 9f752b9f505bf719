"""Which tools are offered, and which may run (AGT-8, AGN-2): patterns and decisions; the first match counts."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import MAX_KEYS, few_keys

ToolDecision = Literal["allow", "ask", "deny"]
"""`ask`: a person decides on each call of the tool."""

_STRICTNESS: Final[tuple[ToolDecision, ...]] = ("allow", "ask", "deny")

ANY_TOOL = "*"

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
    if pattern == ANY_TOOL or not tool.server:
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
