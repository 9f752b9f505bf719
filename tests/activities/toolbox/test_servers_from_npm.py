"""The reference servers of others, each tool called once: nothing that they answer is lost (AGT-6, AGT-7)."""

import json
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.harness import UNASKED
from tests.servers.from_registries import everything_server, file_server, time_server
from tests.vendors.apis import WIRES
from tests.vendors.environment import next_turn, vendor_environment
from tests.waiting import BOUND
from turnkeeper.activities.toolbox.toolbox import Toolbox, build_toolbox
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.testing.vendor_server import Answer, Call

EVERYTHING: dict[str, tuple[dict[str, object], str]] = {
    "echo": ({"message": "hi"}, "Echo: hi"),
    "everything__read_resource": (
        {"uri": "demo://resource/dynamic/text/7"},
        "Resource 7: This is a plaintext resource",
    ),
    "get-annotated-message": ({"messageType": "success", "includeImage": True}, "Operation completed successfully"),
    "get-env": ({}, '"PATH": '),
    "get-resource-links": ({"count": 2}, "demo://resource/dynamic/text/2 (Resource 2: plaintext resource)"),
    "get-resource-reference": ({"resourceType": "Text", "resourceId": 3}, "Resource 3: This is a plaintext resource"),
    "get-structured-content": ({"location": "New York"}, '"temperature":33'),
    "get-sum": ({"a": 2, "b": 3}, "The sum of 2 and 3 is 5."),
    "get-tiny-image": ({}, "The image above is the MCP logo."),
    "gzip-file-as-resource": ({"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resource"}, ""),
    "simulate-research-query": ({"topic": "tea"}, ""),
    "toggle-simulated-logging": ({}, "Started simulated, random-leveled logging"),
    "toggle-subscriber-updates": ({}, "Started simulated resource updated notifications"),
    "trigger-long-running-operation": ({"duration": 1, "steps": 2}, "Duration: 1 seconds, Steps: 2."),
}
"""Arguments of each tool, and a part of what the model must read."""

FILES: dict[str, tuple[dict[str, object], str]] = {
    "create_directory": ({"path": "new"}, "Successfully created directory"),
    "directory_tree": ({"path": "."}, '"name": "a.txt"'),
    "edit_file": ({"path": "a.txt", "edits": [{"oldText": "hello", "newText": "bye"}]}, "+bye"),
    "get_file_info": ({"path": "a.txt"}, "size: "),
    "list_allowed_directories": ({}, "Allowed directories:"),
    "list_directory": ({"path": "."}, "[FILE] a.txt"),
    "list_directory_with_sizes": ({"path": "."}, "[FILE] a.txt"),
    "move_file": ({"source": "b.txt", "destination": "c.txt"}, "Successfully moved"),
    "read_file": ({"path": "a.txt"}, "bye"),
    "read_media_file": ({"path": "pixel.gif"}, ""),
    "read_multiple_files": ({"paths": ["a.txt", "none.txt"]}, "ENOENT"),
    "read_text_file": ({"path": "a.txt", "head": 1}, "bye"),
    "search_files": ({"path": ".", "pattern": "*.gif"}, "pixel.gif"),
    "write_file": ({"path": "d.txt", "content": "x"}, "Successfully wrote"),
}

PIXEL = bytes.fromhex("47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").touch()
    (tmp_path / "pixel.gif").write_bytes(PIXEL)
    return tmp_path


def toolbox_of(folder: Path, **servers: object) -> Toolbox:
    file = folder.parent / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return build_toolbox(Settings(mcp_config=file, state_dir=folder.parent / "state", workspace_root=folder))


async def results_of(toolbox: Toolbox, calls: dict[str, tuple[dict[str, object], str]]) -> dict[str, ToolResult]:
    """Return the result of each tool, in the order of `calls`, which must be all tools."""
    listed = await toolbox.list_tools()
    assert sorted(tool.name for tool in listed.tools if not tool.built_in) == sorted(calls)
    results = {}
    for name, (args, _) in calls.items():
        invocation = ToolInvocation(session_id="s", call_id="1.1.0", name=name, args=args)
        results[name] = await toolbox.call(invocation)
    return results


def lost(results: dict[str, ToolResult], calls: dict[str, tuple[dict[str, object], str]]) -> dict[str, ToolResult]:
    """Return the results that are not as expected."""
    return {
        name: result
        for name, result in results.items()
        if result.status != "ok" or calls[name][1] not in f"{result.outcome}\n{result.content}"
    }


@pytest.mark.timeout(3 * BOUND)
async def test_agt_7_every_tool_of_the_everything_server_is_called(folder, request):
    command, *args = everything_server(request.config.cache)
    async with toolbox_of(folder, everything={"command": command, "args": [*args, "stdio"]}) as toolbox:
        results = await results_of(toolbox, EVERYTHING)
        (instructions,) = (await toolbox.list_tools()).instructions
    assert lost(results, EVERYTHING).keys() <= {"simulate-research-query"}
    assert (instructions.server, instructions.text[:19]) == ("everything", "# Everything Server")
    assert results["simulate-research-query"].status == "error"  # it requires tasks, which are not supported
    assert [one.type for one in results["get-tiny-image"].attachments] == ["image"]
    assert [one.name for one in results["gzip-file-as-resource"].attachments] == ["a.gz"]
    # The text is the JSON of the structured content, so that is not repeated.
    assert results["get-structured-content"].content == ""


@pytest.mark.timeout(3 * BOUND)
async def test_agt_7_every_tool_of_the_filesystem_server_is_called(folder, request):
    command, *args = file_server(request.config.cache)
    files = {"command": command, "args": [*args, "."], "cwd": str(folder)}
    async with toolbox_of(folder, files=files) as toolbox:
        results = await results_of(toolbox, FILES)
    assert lost(results, FILES) == {}
    assert [one.media_type for one in results["read_media_file"].attachments] == ["image/gif"]
    assert results["edit_file"].content.count("+bye") == 1


TIME: dict[str, tuple[dict[str, object], str]] = {
    "get_current_time": ({"timezone": "Europe/Paris"}, '"timezone": "Europe/Paris"'),
    "convert_time": (
        {"source_timezone": "Europe/Paris", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        '"timezone": "Asia/Tokyo"',
    ),
}


@pytest.mark.timeout(3 * BOUND)
async def test_agt_7_a_session_reads_every_answer_of_the_npm_servers(temporal: Client, folder, request):
    """Each tool of three servers by two SDKs is called in one turn; the next request has every answer."""
    calls = {**EVERYTHING, **FILES, **TIME}
    everything, files = everything_server(request.config.cache), file_server(request.config.cache)
    servers = {
        "everything": {"command": everything[0], "args": [*everything[1:], "stdio"]},
        "files": {"command": files[0], "args": [*files[1:], "."], "cwd": str(folder)},
        "time": time_server(request.config.cache),
    }
    async with (
        toolbox_of(folder, **servers) as toolbox,
        WIRES["openai-chat"]() as wire,
        vendor_environment(temporal, wire, toolbox=toolbox) as env,
    ):
        # One after the other: files are written and read.
        wire.script(*(Answer(calls=[Call(f"c{at}", name, args)]) for at, (name, (args, _)) in enumerate(calls.items())))
        wire.script(Answer(text="All done."))
        session = await env.start(UNASKED.model_copy(update={"model": wire.model}))
        turn = await next_turn(session, "Call each tool once.")
        last = "\n".join(str(message["content"]) for message in wire.requests[-1].body["messages"])
    assert turn.agent_message == "All done."
    ran = {call.name: call.result for step in turn.steps if step.kind == "model" for call in step.tool_calls}
    assert sorted(ran) == sorted(calls)
    assert {name for name, result in ran.items() if result is None or result.status != "ok"} == {
        "simulate-research-query"  # it requires tasks, which are not supported
    }
    assert [name for name, (_, text) in calls.items() if text not in last] == []
