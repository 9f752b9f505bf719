"""Which tools may run (AGT-8): patterns to decisions, the first that matches counts."""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from models.model_call import ToolSpec

ToolDecision = Literal["allow", "deny"]

ToolPolicy = Annotated[dict[Annotated[str, Field(min_length=1, max_length=128)], ToolDecision], Field(max_length=200)]
"""Tool name patterns (`*`, `?`, `[abc]`) to decisions, in order of precedence."""


def decide(policy: dict[str, ToolDecision], tool: ToolSpec) -> ToolDecision:
    """Say whether `tool` may run: the first pattern that matches, else read-only and built-in tools only.

    >>> decide({"file_*": "deny"}, ToolSpec(name="file_read", effect="read"))
    'deny'
    >>> decide({}, ToolSpec(name="file_write", built_in=True)), decide({}, ToolSpec(name="pay"))
    ('allow', 'deny')
    """
    for pattern, decision in policy.items():
        if fnmatchcase(tool.name, pattern):
            return decision
    return "allow" if tool.built_in or tool.effect == "read" else "deny"
