"""A session's tool list when some servers are unreachable (AGT-6)."""

from collections.abc import Sequence
from hashlib import sha256

from turnkeeper.models.limits import TOOL_LIST_BYTES
from turnkeeper.models.transcript.model_call import ServerText, ToolList, ToolSpec


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
