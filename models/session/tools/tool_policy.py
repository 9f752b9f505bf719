"""Which tools may run (AGT-8): patterns and decisions; the first match counts."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import MAX_KEYS, few_keys

ToolDecision = Literal["allow", "ask", "deny"]
"""`ask`: a person decides on each call of the tool."""

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
) -> ToolDecision:
    """Return the decision of the first matching pattern; without a match, read-only tools are allowed, others ask.

    A foreign tool matches by its name and by `server__name`. Which of the two is its name depends on the tools of other
    servers; policies must not depend on that.

    A tool in `allowed` was allowed for the session: `ask` becomes `allow`, `deny` stays. In an `unattended` session
    nobody can be asked, so the default is `deny`.

    >>> decide({"file_*": "deny"}, ToolSpec(name="file_read", effect="read"))
    'deny'
    >>> write = ToolSpec(name="file_write", effect="idempotent", built_in=True)
    >>> decide({}, ToolSpec(name="look", effect="read")), decide({}, write)
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
    if tool.effect == "read":
        return "allow"
    return "deny" if unattended else "ask"
