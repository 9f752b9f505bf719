"""Which tools may run (AGT-8): patterns to decisions, the first that matches counts."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import MAX_KEYS, few_keys

ToolDecision = Literal["allow", "ask", "deny"]
"""`ask`: a person decides on every call of the tool."""

ToolPolicy = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=128)], ToolDecision],
    BeforeValidator(few_keys),
    Field(max_length=MAX_KEYS),
]
"""Tool name patterns (`*`, `?`, `[abc]`) to decisions, in order of precedence."""


def decide(
    policy: dict[str, ToolDecision],
    tool: ToolSpec,
    *,
    unattended: bool = False,
    allowed: Collection[str] = (),
    trusts_built_in: bool = False,
) -> ToolDecision:
    """Return whether `tool` may run: what the first pattern that matches says, else read-only ones at once.

    A foreign tool is matched by its name and by `server__name`, whichever of the two it goes by: that depends on what
    other servers offer, and a policy must not.

    A tool in `allowed` was allowed for the session, so nobody is asked again; what is denied stays denied. Where nobody
    is there to be asked, in an `unattended` session, `deny` is what counts where the policy says nothing.

    `trusts_built_in`: built-in tools run at once where the policy says nothing, also those that write. That was the
    default of sessions of older releases, and stays theirs.

    >>> decide({"file_*": "deny"}, ToolSpec(name="file_read", effect="read"))
    'deny'
    >>> write = ToolSpec(name="file_write", effect="idempotent", built_in=True)
    >>> decide({}, ToolSpec(name="look", effect="read")), decide({}, write), decide({}, write, trusts_built_in=True)
    ('allow', 'ask', 'allow')
    >>> decide({"mail__*": "deny", "*": "allow"}, ToolSpec(name="send", server="mail"))
    'deny'
    >>> decide({}, ToolSpec(name="pay"), unattended=True), decide({}, ToolSpec(name="pay"), allowed=["pay"])
    ('deny', 'allow')
    """
    names = {tool.name, f"{tool.server}__{tool.name}" if tool.server else tool.name}
    matching = (decision for pattern, decision in policy.items() if any(fnmatchcase(name, pattern) for name in names))
    decision = next(matching, None) or _default(tool, unattended=unattended, trusts_built_in=trusts_built_in)
    return "allow" if decision == "ask" and tool.name in allowed else decision


def _default(tool: ToolSpec, *, unattended: bool, trusts_built_in: bool) -> ToolDecision:
    if tool.effect == "read" or (tool.built_in and trusts_built_in):
        return "allow"
    return "deny" if unattended else "ask"
