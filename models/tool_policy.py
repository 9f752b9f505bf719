"""Which tools may run (AGT-8): patterns to decisions, the first that matches counts."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from models.model_call import ToolSpec
from models.wire import MAX_KEYS, few_keys

ToolDecision = Literal["allow", "ask", "deny"]
"""`ask`: a person decides on every call of the tool."""

ToolPolicy = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=128)], ToolDecision],
    BeforeValidator(few_keys),
    Field(max_length=MAX_KEYS),
]
"""Tool name patterns (`*`, `?`, `[abc]`) to decisions, in order of precedence."""


def decide(
    policy: dict[str, ToolDecision], tool: ToolSpec, *, unattended: bool = False, allowed: Collection[str] = ()
) -> ToolDecision:
    """Say whether `tool` may run: the first pattern that matches, else read-only and built-in ones at once.

    A foreign tool is matched by its name and by `server__name`, whichever of the two it goes by: that depends on what
    other servers offer, and a policy must not.

    A tool in `allowed` was allowed for the session, so nobody is asked again; what is denied stays denied. Where nobody
    is there to be asked, in an `unattended` session, `deny` is what counts where the policy says nothing.

    >>> decide({"file_*": "deny"}, ToolSpec(name="file_read", effect="read"))
    'deny'
    >>> decide({}, ToolSpec(name="file_write", built_in=True)), decide({}, ToolSpec(name="pay"))
    ('allow', 'ask')
    >>> decide({"mail__*": "deny", "*": "allow"}, ToolSpec(name="send", server="mail"))
    'deny'
    >>> decide({}, ToolSpec(name="pay"), unattended=True), decide({}, ToolSpec(name="pay"), allowed=["pay"])
    ('deny', 'allow')
    """
    names = {tool.name, f"{tool.server}__{tool.name}" if tool.server else tool.name}
    matching = (decision for pattern, decision in policy.items() if any(fnmatchcase(name, pattern) for name in names))
    decision = next(matching, None) or _default(tool, unattended=unattended)
    return "allow" if decision == "ask" and tool.name in allowed else decision


def _default(tool: ToolSpec, *, unattended: bool) -> ToolDecision:
    if tool.built_in or tool.effect == "read":
        return "allow"
    return "deny" if unattended else "ask"
