"""Which tools a policy is for: a foreign server chooses the names of its tools, and must not choose their decisions."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper.models.session.tools import decide
from turnkeeper.models.transcript.model_call import ToolSpec

STRICTNESS = ("allow", "ask", "deny")

NAMES = st.text("ab_", min_size=1, max_size=9)
SERVERS = st.from_regex(r"[ab]+(_[ab]+)*", fullmatch=True)
"""As `mcp.json` accepts them."""
PATTERNS = st.text("ab_*?", min_size=1, max_size=9).filter(lambda pattern: pattern != "*")
POLICIES = st.dictionaries(PATTERNS, st.sampled_from(STRICTNESS), max_size=4)


def names_server(pattern: str, server: str) -> bool:
    first, separator, _ = pattern.partition("__")
    return bool(separator) and fnmatchcase(server, first)


@given(policy=POLICIES, server=SERVERS, name=NAMES, is_read=st.booleans(), is_qualified=st.booleans())
@example(policy={"mail__*": "allow"}, server="evil", name="mail__read_inbox", is_read=False, is_qualified=False)
@example(policy={"file_*": "allow"}, server="evil", name="file_write", is_read=False, is_qualified=True)
def test_agt_8_no_tool_name_makes_a_decision_for_another_server_less_strict(
    policy: dict, server: str, name: str, is_read: bool, is_qualified: bool
) -> None:
    """`is_qualified`: several servers offer the name, so sessions put the server's before it."""
    tool = ToolSpec(
        name=f"{server}__{name}" if is_qualified else name, server=server, effect="read" if is_read else "at_most_once"
    )
    others = {pattern: decision for pattern, decision in policy.items() if not names_server(pattern, server)}
    assert STRICTNESS.index(decide(others, tool)) >= STRICTNESS.index(decide({}, tool))


@given(policy=POLICIES, server=SERVERS, name=NAMES, is_read=st.booleans(), last=st.sampled_from(STRICTNESS))
@example(policy={"a_b": "allow", "a*": "deny"}, server="a", name="a_b", is_read=True, last="allow")
@example(policy={"a_b": "ask", "a*": "deny"}, server="a", name="a_b", is_read=False, last="allow")
def test_agt_8_no_pattern_without_a_server_makes_a_foreign_decision_less_strict(
    policy: dict, server: str, name: str, is_read: bool, last: str
) -> None:
    """`last`: the decision on all tools that no pattern before is for."""
    tool = ToolSpec(name=name, server=server, effect="read" if is_read else "at_most_once")
    policy = {**policy, "*": last}
    for bare in [pattern for pattern in policy if "__" not in pattern and pattern != "*"]:
        rest = {pattern: decision for pattern, decision in policy.items() if pattern != bare}
        assert STRICTNESS.index(decide(policy, tool)) >= STRICTNESS.index(decide(rest, tool)), bare


@given(decision=st.sampled_from(STRICTNESS), server=SERVERS, name=NAMES, other=SERVERS, is_qualified=st.booleans())
@example(decision="allow", server="a", name="b__a", other="a_b", is_qualified=False)
def test_agt_8_a_pattern_with_a_server_applies_to_the_tools_of_that_server_only(
    decision: str, server: str, name: str, other: str, is_qualified: bool
) -> None:
    tool = ToolSpec(name=f"{server}__{name}" if is_qualified else name, server=server)
    assert decide({f"{server}__*": decision}, tool) == decision
    if other != server:
        assert decide({f"{other}__*": decision}, tool) == "ask"


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        ({"send": "allow"}, "ask"),
        ({"*__send": "allow"}, "allow"),
        ({"*": "allow"}, "allow"),
        ({"send": "deny", "mail__*": "allow"}, "deny"),
        ({"mail__send": "allow", "send": "deny"}, "allow"),
        ({"send": "ask", "*": "deny"}, "deny"),
        ({"mail*": "allow"}, "ask"),
        ({"send": "allow", "s*": "deny"}, "deny"),
        ({"send": "ask", "s*": "deny", "*": "allow"}, "deny"),
        ({"send": "allow", "s*": "ask", "*": "allow"}, "ask"),
    ],
)
def test_agt_8_a_pattern_without_a_server_only_restricts_foreign_tools(policy: dict, decision: str) -> None:
    assert decide(policy, ToolSpec(name="send", server="mail")) == decision


def test_agt_8_an_allowed_name_does_not_lift_a_restriction_of_foreign_tools() -> None:
    policy = {"delete_ok": "allow", "delete_*": "deny"}
    assert decide(policy, ToolSpec(name="delete_ok", built_in=True)) == "allow"
    assert decide(policy, ToolSpec(name="delete_ok", server="trusted", effect="read")) == "deny"
