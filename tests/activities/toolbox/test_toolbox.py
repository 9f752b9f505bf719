"""Several MCP servers behind one toolbox: names, effects, arguments, and failures (AGT-6, AGT-7, CTX-14)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from referencing._core import Resolver

from tests.waiting import BOUND
from turnkeeper.activities.toolbox import schemas
from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import IDEMPOTENCY_KEY, Toolbox
from turnkeeper.activities.tools import ServerLostError, ToolSource
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

READ_ONLY = ToolAnnotations(read_only_hint=True)
IDEMPOTENT = ToolAnnotations(idempotent_hint=True)


def server_of(*tools: Callable[..., Any]) -> MCPServer:
    """Return a foreign server of these tools."""
    server = MCPServer("foreign", log_level="CRITICAL")
    for tool in tools:
        server.add_tool(tool)
    return server


def server_with(*names: str) -> Server[Any]:
    """Return a foreign server of tools with these names, whatever they are; a call is answered with the name."""

    async def listed(_ctx: object, _params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}) for name in names])

    async def called(_ctx: object, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=params.name)])

    return Server("foreign", on_list_tools=listed, on_call_tool=called)


def invocation(name: str, args: dict[str, Any] | None = None, **more: Any) -> ToolInvocation:
    return ToolInvocation(session_id="s-1", call_id="1.2.0", name=name, args=args or {}, **more)


async def echo(text: str, times: int = 1) -> str:
    """Repeat the text."""
    return text * times


async def result_of_answer(result: CallToolResult, **more: Any) -> ToolResult:
    """Return the tool result that a foreign server's answer becomes."""

    async def tool() -> CallToolResult:
        return result

    async with Toolbox([ToolServer("foreign", server_of(tool))]) as toolbox:
        return await toolbox.call(invocation("tool", **more))


async def raising(error: BaseException, annotations: ToolAnnotations | None = None) -> ToolResult:
    """Return the result of a tool that raises."""

    async def tool() -> str:
        raise error

    server = MCPServer("foreign", log_level="CRITICAL")
    server.add_tool(tool, annotations=annotations)
    async with Toolbox([ToolServer("foreign", server, trusted=True)]) as toolbox:
        return await result_of_call(toolbox, invocation("tool"))


async def result_of_call(toolbox: Toolbox, called: ToolInvocation) -> ToolResult:
    """Return the result of a call that isn't repeated."""
    try:
        return await toolbox.call(called)
    except ServerLostError as lost:
        return lost.result


def untimed(result: ToolResult) -> ToolResult:
    assert result.duration_ms is not None
    return result.model_copy(update={"duration_ms": None})


# Names and effects


async def names_of(*servers: ToolServer, reserved: tuple[str, ...] = ()) -> list[str]:
    async with Toolbox(servers, reserved=reserved) as toolbox:
        return [tool.name for tool in (await toolbox.list_tools()).tools]


async def test_agt_6_the_built_in_tools_come_first_and_the_order_is_stable(tmp_path):
    built_in = ToolServer("own", built_in_tools(tmp_path, now=lambda: datetime.now(UTC)))
    foreign = ToolServer("foreign", server_with("zebra", "ant"))
    expected = ["file_read", "file_list", "file_search", "file_write", "now", "ant", "zebra"]
    assert await names_of(built_in, foreign) == expected


async def test_agt_6_names_include_the_servers_name_only_where_several_offer_the_same(tmp_path):
    built_in = ToolServer("own", built_in_tools(tmp_path, now=lambda: datetime.now(UTC)))
    a, b = (
        ToolServer("a", server_with("search", "pay", "now")),
        ToolServer("b", server_with("search", "ship")),
    )
    assert (await names_of(built_in, a, b))[4:] == ["now", "a__now", "pay", "a__search", "b__search", "ship"]


async def test_agt_6_each_of_several_tools_of_one_name_can_be_called():
    servers = [ToolServer(name, server_of(tool_saying(name))) for name in ("a", "b")]
    async with Toolbox(servers) as toolbox:
        for name in ("a", "b"):
            assert (await toolbox.call(invocation(f"{name}__say"))).outcome == f"said by {name}"
        assert (await toolbox.call(invocation("say"))).status == "error"


def tool_saying(name: str) -> Callable[[], Awaitable[str]]:
    async def say() -> str:
        return f"said by {name}"

    return say


async def test_agt_6_a_name_with_the_servers_prefix_works_even_if_it_is_no_longer_needed():
    async with Toolbox([ToolServer("a", server_of(tool_saying("a")))]) as toolbox:
        assert (await toolbox.call(invocation("a__say"))).outcome == "said by a"
        assert [tool.name for tool in (await toolbox.list_tools()).tools] == ["say"]


async def test_agt_6_reserved_names_are_not_used_for_tools():
    assert await names_of(ToolServer("a", server_with("run_task")), reserved=("run_task",)) == ["a__run_task"]


async def test_agt_6_names_that_differ_only_in_forbidden_characters_are_distinguished():
    async with Toolbox([ToolServer("a", server_with("x.y", "x y", "x_y", "a__x_y"))]) as toolbox:
        tools = (await toolbox.list_tools()).tools
        outcomes = {(await toolbox.call(invocation(tool.name))).outcome for tool in tools}
    assert outcomes == {"x.y", "x y", "x_y", "a__x_y"}


NAME = st.sampled_from(["a", "a__b", "b", "a.b", "é", "x" * 64, "x" * 65, "y" * 128]) | st.text(min_size=1, max_size=70)
SERVER_NAMES = st.lists(st.sampled_from(["a", "b", "a__b", "s" * 60]), min_size=1, max_size=3, unique=True)


@given(st.data(), SERVER_NAMES)
async def test_agt_6_names_are_unique_and_every_vendor_accepts_them(data, server_names):
    servers = [
        ToolServer(name, server_with(*data.draw(st.lists(NAME, max_size=6, unique=True)))) for name in server_names
    ]
    names = await names_of(*servers)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert await names_of(*servers) == names


def test_agt_6_server_names_must_be_unique():
    with pytest.raises(ValueError, match="names of their own"):
        Toolbox([ToolServer("a", server_with()), ToolServer("a", server_with())])


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        (None, "at_most_once"),
        (ToolAnnotations(), "at_most_once"),
        (ToolAnnotations(read_only_hint=False, idempotent_hint=False), "at_most_once"),
        (ToolAnnotations(destructive_hint=False), "at_most_once"),
        (IDEMPOTENT, "idempotent"),
        (READ_ONLY, "read"),
        (ToolAnnotations(read_only_hint=True, idempotent_hint=True), "read"),
    ],
)
async def test_agt_7_tools_not_annotated_by_a_trusted_server_run_at_most_once(annotations, effect):
    server = MCPServer("foreign", log_level="CRITICAL")
    server.add_tool(echo, annotations=annotations)
    for is_trusted, expected in ((True, effect), (False, "at_most_once")):
        async with Toolbox([ToolServer("foreign", server, trusted=is_trusted)]) as toolbox:
            (tool,) = (await toolbox.list_tools()).tools
        assert (tool.effect, tool.built_in) == (expected, False)


async def test_agt_6_descriptions_and_schemas_enter_history_bounded_and_encodable():
    async def listed(_ctx: object, _params: object) -> ListToolsResult:
        schema = {"type": "object", "properties": {"a\0": {"description": "b\0"}}}
        return ListToolsResult(tools=[Tool(name="t", description="\0" + "x" * 9_000, input_schema=schema)])

    async with Toolbox([ToolServer("foreign", Server("foreign", on_list_tools=listed))]) as toolbox:
        (tool,) = (await toolbox.list_tools()).tools
    assert len(tool.description) <= 4_000
    assert "\\u0000" not in tool.model_dump_json()


# Arguments


@pytest.mark.parametrize(
    ("args", "argument_errors"),
    [
        ({}, ["arguments: 'text' is a required property", '["text"]']),
        ({"text": 1}, ["text: 1 is not of type 'string'"]),
        ({"text": "a", "times": "2"}, ["times: '2' is not of type 'integer'"]),
        ({"text": "a", "times": True}, ["times: True is not of type 'integer'"]),
        ({"times": None}, ["'text' is a required property", "times: None is not of type 'integer'"]),
    ],
)
async def test_agt_7_invalid_arguments_give_a_result_that_names_the_field_and_its_rule(args, argument_errors):
    async with Toolbox([ToolServer("foreign", server_of(echo))]) as toolbox:
        result = await toolbox.call(invocation("echo", args))
    assert (result.status, result.outcome) == ("error", "echo was not called: its arguments don't fit")
    for complaint in argument_errors:
        assert complaint in result.content


async def test_agt_7_the_error_for_an_unknown_argument_of_a_tool_lists_the_valid_ones(tmp_path):
    server = built_in_tools(tmp_path, now=lambda: datetime.now(UTC))
    async with Toolbox([ToolServer("own", server)]) as toolbox:
        result = await toolbox.call(invocation("file_write", {"path": "a", "content": "", "mode": "x" * 100_000}))
    assert "('mode' was unexpected) (allowed: path, content)" in result.content


async def test_agt_7_a_huge_invalid_argument_does_not_make_a_huge_result():
    async with Toolbox([ToolServer("foreign", server_of(echo))]) as toolbox:
        result = await toolbox.call(invocation("echo", {"text": ["x" * 1_000_000]}))
    assert len(result.content) < 400
    assert "is not of type 'string'" in result.content


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.invalid/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "patternProperties": {"(": {}}},
    ],
)
async def test_agt_7_an_unusable_schema_is_left_to_its_server_and_nothing_is_fetched(schema, monkeypatch):
    async def listed(_ctx: object, _params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="t", input_schema=schema)])

    async def called(_ctx: object, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=json.dumps(params.arguments))])

    monkeypatch.setattr("urllib.request.urlopen", lambda *_: pytest.fail("fetched"))
    server = Server("foreign", on_list_tools=listed, on_call_tool=called)
    async with Toolbox([ToolServer("foreign", server)]) as toolbox:
        result = await toolbox.call(invocation("t", {"a": 1}))
    assert (result.status, result.outcome) == ("ok", '{"a": 1}')


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of 2**levels nodes, in 70 bytes a level."""
    twice = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    end = {f"d{levels}": {"type": "string"}}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": twice | end}


def object_with(length: int) -> dict[str, Any]:
    return {str(number): 0 for number in range(length)}


async def test_agt_7_a_small_but_expensive_schema_is_left_to_its_server(monkeypatch):
    followed = counting_lookups(monkeypatch)
    async with Toolbox([ToolServer("foreign", serving(doubling(17)))]) as toolbox:
        result = await toolbox.call(invocation("t", {"a": "x"}))
    assert (result.status, result.outcome) == ("ok", '{"a": "x"}')
    assert 0 < len(followed) < schemas.MAX_STEPS


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(17), "x"),
        ({"properties": {"a": {"items": {"items": {"type": "integer"}}}}}, [[1] * 300] * 300),
        ({"properties": {"a": {"anyOf": [{"anyOf": [{"type": "integer"}] * 30}] * 30}}}, "x" * 100_000),
        ({"properties": {"a": {"items": {"enum": list(map(str, range(3_000)))}}}}, ["2999"] * 3_000),
        ({"properties": {"a": {"items": {"$ref": "#/$defs/b"}}}, "$defs": {"b": object_with(3_000)}}, [1] * 3_000),
    ],
)
def test_agt_7_checking_any_schema_ends_after_a_limited_number_of_steps(schema, value, monkeypatch):
    spent: list[int] = []

    def counted(steps: int, *, spend: Callable[[int], None] = schemas._spend) -> None:
        spent.append(steps)
        spend(steps)

    assert schemas.schema_problem(json.dumps(schema)) is None
    monkeypatch.setattr(schemas, "_spend", counted)
    followed = counting_lookups(monkeypatch)
    assert schemas.argument_errors(json.dumps(schema), {"a": value}) == []
    assert len(followed) <= len(spent) <= schemas.MAX_STEPS < sum(spent)


async def test_agt_7_an_abandoned_schema_uses_no_steps_of_the_next_one():
    checked_elsewhere = '{"properties": {"a": {"type": "integer", "title": "checked in another thread"}}}'
    assert await asyncio.to_thread(schemas.schema_problem, checked_elsewhere) is None
    assert schemas.argument_errors(json.dumps(doubling(18)), {"a": "x"}) == []
    assert [error.message for error in schemas.argument_errors(checked_elsewhere, {"a": "x"})] == [
        "'x' is not of type 'integer'"
    ]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{}] * 3_000),
        ({"enum": [[{}] * 300] * 300}, [{}] * 299),
        ({"const": [[]]}, []),
        ({"unevaluatedProperties": False}, {"b": 1}),
        ({"unevaluatedItems": False}, [1]),
    ],
)
def test_agt_7_schema_keywords_that_cannot_be_counted_are_left_to_the_server(schema, value, monkeypatch):
    looked_for = ("find_evaluated_property_keys_by_schema", "find_evaluated_item_indexes_by_schema")
    for uncounted in ("equal", "uniq", *looked_for):
        monkeypatch.setattr(f"jsonschema._keywords.{uncounted}", lambda *_: pytest.fail("done"))
    assert schemas.argument_errors(json.dumps({"properties": {"a": schema}}), {"a": value}) == []
    assert schemas.argument_errors('{"properties": {"a": {"minLength": 2}}}', {"a": "x"}) != []


def counting_lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of all references that are followed from here on."""
    followed: list[str] = []
    lookup = Resolver.lookup

    def counting_lookup(resolver: Resolver[Any], reference: str) -> Any:
        followed.append(reference)
        return lookup(resolver, reference)

    monkeypatch.setattr(Resolver, "lookup", counting_lookup)
    return followed


# The schemas of arguments that vendors get


def serving(schema: dict[str, Any], description: str = "") -> Server[Any]:
    """Return a foreign server of one tool, which answers with its arguments."""

    async def listed(_ctx: object, _params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="t", description=description, input_schema=schema)])

    async def called(_ctx: object, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=json.dumps(params.arguments))])

    return Server("foreign", on_list_tools=listed, on_call_tool=called)


async def spec_of(schema: dict[str, Any]) -> ToolSpec:
    async with Toolbox([ToolServer("foreign", serving(schema, "Does it."))]) as toolbox:
        (tool,) = (await toolbox.list_tools()).tools
        return tool


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"a": {"type": "string", "pattern": "("}, "b-c.d_e": {"enum": ["x"], "description": "b"}},
        {"a": {"$ref": "#/$defs/a"}, "b": {"anyOf": [{"$ref": "#/$defs/a~1b/0"}, True]}},
        {"a": {"type": "object", "properties": {"$filter": {"type": "string"}}}},
        {f"p{number}": {"type": "integer", "description": "x" * 60} for number in range(500)},
        {"a": nested(20)},
    ],
)
@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
async def test_agt_6_a_schema_that_vendors_accept_is_sent_unchanged(properties, dialect):
    definitions = {"a": {"type": "string"}, "a/b": [{"type": "integer"}]} if "$ref" in json.dumps(properties) else {}
    schema = {**dialect, "type": "object", "properties": properties, "$defs": definitions}
    if definitions:
        schema["$defs"]["a/b"] = {"0": {"type": "integer"}}
    spec = await spec_of(schema)
    assert (spec.input_schema, spec.description) == (schema, "Does it.")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a b": {"type": "string"}}},
        {"type": "object", "properties": {"": {"type": "string"}}},
        {"type": "object", "properties": {"x" * 65: {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "any"}}},
        {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"type": "number", "exclusiveMinimum": True}}},
        {"type": "object", "properties": {"a": {"minimum": float("nan")}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.invalid/schema.json"}}},
        {"type": "object", "properties": []},
        {"type": "object", "required": [{}] * 20_000},
        nested(25),
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}] * 4_000}}},
    ],
)
async def test_agt_6_a_tool_with_a_schema_that_a_vendor_would_reject_can_be_called(schema, caplog):
    spec = await spec_of(schema)
    assert spec.input_schema == {"type": "object"}
    assert spec.description.startswith("Does it.\n\nIts arguments, in its server's words: {")
    assert len(spec.description) <= 4_000
    assert "vendors would reject the schema of 't'" in caplog.text
    async with Toolbox([ToolServer("foreign", serving(schema, "Does it."))]) as toolbox:
        result = await toolbox.call(invocation("t", {"a": 1}, server="foreign", tool_digest=spec.digest))
    assert (result.status, result.outcome) == ("ok", '{"a": 1}')


# Calls


def test_agt_6_the_toolbox_serves_the_activities():
    source: ToolSource = Toolbox([])
    assert source


async def test_agt_7_an_unknown_tool_gives_a_result_that_lists_the_tools():
    async with Toolbox([ToolServer("foreign", server_of(echo))]) as toolbox:
        result = await toolbox.call(invocation("ecko\nx"))
    expected = ToolResult(outcome="There is no tool 'ecko\\nx'", content="There are: echo", status="error")
    assert untimed(result) == expected


async def test_agt_7_the_call_id_is_passed_on_as_a_globally_unique_idempotency_key():
    async def key(ctx: Context) -> str:
        meta = dict(ctx.request_context.meta or {})
        return json.dumps({name: value for name, value in meta.items() if name.startswith("turnkeeper")})

    async with Toolbox([ToolServer("foreign", server_of(key))]) as toolbox:
        first = await toolbox.call(invocation("key", workspace="secret/place"))
        again = await toolbox.call(invocation("key"))
    # A foreign server gets nothing else: for example, not the folder of the session's files.
    assert json.loads(first.outcome) == json.loads(again.outcome) == {IDEMPOTENCY_KEY: "s-1/1.2.0"}


async def test_agt_7_a_tool_that_reports_an_error_gives_a_result_with_its_message():
    result = await raising(ToolError("no money left"))
    assert (result.status, result.outcome) == ("error", "Error executing tool tool: no money left")


async def test_agt_7_a_tool_that_crashes_gives_a_result_without_the_workers_secrets():
    result = await raising(RuntimeError("password=hunter2"))
    assert (result.status, result.outcome, result.content) == ("error", "Error executing tool tool", "")


async def test_agt_7_a_protocol_error_gives_a_result():
    result = await raising(MCPError(INVALID_PARAMS, "not like this"))
    assert untimed(result) == ToolResult(outcome="tool failed", content="not like this", status="error")


@pytest.mark.parametrize(
    ("annotations", "status"), [(None, "outcome_unknown"), (READ_ONLY, "error"), (IDEMPOTENT, "error")]
)
async def test_agt_7_a_lost_connection_makes_an_at_most_once_call_an_unknown_outcome(annotations, status):
    result = await raising(MCPError(CONNECTION_CLOSED, "ServerConnection closed"), annotations)
    assert result.status == status


@pytest.mark.parametrize(("is_trusted", "status"), [(False, "outcome_unknown"), (True, "error")])
async def test_agt_7_an_unreadable_answer_makes_an_at_most_once_call_an_unknown_outcome(is_trusted, status):
    schema = {"type": "object"}

    async def listed(_ctx: object, _params: object) -> ListToolsResult:
        return ListToolsResult(
            tools=[Tool(name="t", input_schema=schema, output_schema=schema, annotations=IDEMPOTENT)]
        )

    async def called(_ctx: object, _params: object) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="not what was promised")])

    server = Server("foreign", on_list_tools=listed, on_call_tool=called)
    async with Toolbox([ToolServer("foreign", server, trusted=is_trusted)]) as toolbox:
        assert (await result_of_call(toolbox, invocation("t"))).status == status


async def test_agt_7_an_unreachable_server_does_not_hide_the_tools_of_others(caplog):
    @asynccontextmanager
    async def broken(_server: object) -> AsyncIterator[None]:
        raise RuntimeError("no such database")
        yield

    unreachable = MCPServer("broken", log_level="CRITICAL", lifespan=broken)
    async with Toolbox([ToolServer("broken", unreachable), ToolServer("foreign", server_of(echo))]) as toolbox:
        assert [tool.name for tool in (await toolbox.list_tools()).tools] == ["echo"]
        assert (await toolbox.call(invocation("echo", {"text": "a"}))).outcome == "a"
        assert "the tools of 'broken' could not be read" in caplog.text


async def test_agt_7_a_dead_server_keeps_its_tools_and_calls_give_results():
    available = [True]

    @asynccontextmanager
    async def sometimes(_server: object) -> AsyncIterator[None]:
        if not available[0]:
            raise RuntimeError("gone")
        yield

    server = MCPServer("foreign", log_level="CRITICAL", lifespan=sometimes)
    server.add_tool(echo)
    toolbox = Toolbox([ToolServer("foreign", server)])
    listed = (await toolbox.list_tools()).tools
    await toolbox.aclose()
    available[0] = False
    assert (await toolbox.list_tools()).tools == listed
    # Nothing was called, so the outcome is certain, though the call may not be repeated.
    assert listed[0].effect == "at_most_once"
    expected = ToolResult(outcome="echo was not called", content="Its server can't be reached now.", status="error")
    assert untimed(await toolbox.call(invocation("echo", {"text": "a"}))) == expected
    available[0] = True
    assert (await toolbox.call(invocation("echo", {"text": "a"}))).outcome == "a"
    await toolbox.aclose()


async def test_agt_7_a_cancellation_passes_through_and_other_calls_continue():
    started, ended = asyncio.Event(), []

    async def wait(forever: bool) -> str:
        started.set()
        try:
            await asyncio.Event().wait() if forever else None
        finally:
            ended.append(forever)
        return "done"

    async with Toolbox([ToolServer("foreign", server_of(wait))]) as toolbox:
        waiting = asyncio.create_task(toolbox.call(invocation("wait", {"forever": True})))
        await asyncio.wait_for(started.wait(), BOUND)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, BOUND)
        assert waiting.cancelled()
        assert ended == [True]
        assert (await toolbox.call(invocation("wait", {"forever": False}))).outcome == "done"


async def test_agt_7_a_cancelled_call_does_not_cancel_others_waiting_for_the_connection():
    entered, go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow(_server: object) -> AsyncIterator[None]:
        entered.set()
        await go_on.wait()
        yield

    server = MCPServer("foreign", log_level="CRITICAL", lifespan=slow)
    server.add_tool(echo)
    async with Toolbox([ToolServer("foreign", server)]) as toolbox:
        first, second = (asyncio.create_task(toolbox.call(invocation("echo", {"text": "a"}))) for _ in range(2))
        await asyncio.wait_for(entered.wait(), BOUND)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(first, BOUND)
        go_on.set()
        assert (await asyncio.wait_for(second, BOUND)).outcome == "a"


async def test_agt_6_each_of_many_concurrent_calls_gets_its_own_answer(tmp_path):
    server = built_in_tools(tmp_path, now=lambda: datetime.now(UTC))
    for number in range(50):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "f").write_text(str(number))
    async with Toolbox([ToolServer("own", server)]) as toolbox:
        calls = [toolbox.call(invocation("file_read", {"path": "f"}, workspace=str(number))) for number in range(50)]
        assert [result.content for result in await asyncio.gather(*calls)] == [str(number) for number in range(50)]


# Results


@pytest.mark.parametrize(
    ("result", "outcome", "content"),
    [
        (CallToolResult(content=[TextContent(text="42")]), "42", ""),
        (CallToolResult(content=[TextContent(text="a\nb")]), "Called tool", "a\nb"),
        (CallToolResult(content=[TextContent(text="a"), TextContent(text="b")]), "Called tool", "a\nb"),
        (CallToolResult(content=[]), "Called tool", ""),
        (CallToolResult(content=[TextContent(text=" \n")]), "Called tool", " \n"),
        (CallToolResult(content=[], structured_content={"é": [1]}), '{"é": [1]}', ""),
        (CallToolResult(content=[TextContent(text="text")], structured_content={"a": 1}), "text", '{"a": 1}'),
        (
            CallToolResult(content=[ImageContent(data="AAAA", mime_type="image/png")]),
            "[image, image/png, 3 bytes: is not a PNG image]",
            "",
        ),
        (CallToolResult(content=[ResourceLink(name="n", uri="x://y")]), "[link to n: x://y]", ""),
        (
            CallToolResult(content=[ResourceLink(name="n", title="Notes", uri="x://y", description="of May")]),
            "[link to Notes: x://y (of May)]",
            "",
        ),
        (
            CallToolResult(content=[EmbeddedResource(resource=TextResourceContents(uri="x://y", text="a"))]),
            "Called tool",
            "[x://y]\na",
        ),
    ],
)
async def test_agt_7_any_server_answer_becomes_an_outcome_and_its_content(result, outcome, content):
    assert untimed(await result_of_answer(result)) == ToolResult(outcome=outcome, content=content)


@pytest.mark.parametrize(
    ("text", "outcome", "content"), [("broke", "broke", ""), ("a\nb", "tool failed", "a\nb"), ("", "tool failed", "")]
)
async def test_agt_7_an_error_reported_by_a_tool_is_marked_as_one(text, outcome, content):
    result = await result_of_answer(CallToolResult(content=[TextContent(text=text)], is_error=True))
    assert untimed(result) == ToolResult(outcome=outcome, content=content, status="error")


async def test_ctx_14_a_foreign_tools_long_result_is_cut_by_a_final_limit():
    text = "head\n" + "é" * 100_000 + "\ntail"
    answer = CallToolResult(content=[TextContent(text=text)])
    result = await result_of_answer(answer, max_chars=30_000, max_bytes=20_000)
    assert result.content.startswith("head\n")
    assert result.content.endswith("\ntail")
    assert "of 100,010 characters left out" in result.content
    assert len(result.content.encode()) <= 20_000


async def test_ses_16_payloads_never_contain_unencodable_text():
    one_line = await result_of_answer(CallToolResult(content=[TextContent(text="a\0b")]))
    several = await result_of_answer(CallToolResult(content=[TextContent(text="a\n\0b")]))
    assert (one_line.outcome, several.content) == ("a\ufffdb", "a\n\ufffdb")


async def test_seed_5_an_outcome_is_one_line_however_long_its_text_is(tmp_path: Path):
    server = built_in_tools(tmp_path, now=lambda: datetime.now(UTC))
    async with Toolbox([ToolServer("own", server)]) as toolbox:
        result = await toolbox.call(invocation("file_write", {"path": "/".join(["d" * 200] * 20), "content": ""}))
    assert result.status == "ok"
    assert len(result.outcome) <= 310
    assert result.outcome.startswith("Wrote ddd")
    assert result.outcome.endswith("(0 bytes)")
