"""The built-in tools, called through the toolbox as a session calls them (AGT-6, CTX-14)."""

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.utilities.func_metadata import func_metadata

from tests.waiting import BOUND
from turnkeeper.activities.toolbox.built_in import ResultLimits, built_in_tools, fits
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.activities.toolbox.workspace import MAX_READ_BYTES, Workspace
from turnkeeper.models.transcript.conversation import ToolStatus
from turnkeeper.models.transcript.model_call import QUICK_READS, ToolInvocation

NOW = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
SPECS_DIGEST = "f2e55ce87904b471921c0a6cb5cc83946604e396ed90c60c00a1315acba27740"
"""The digest of the tools' specs; running sessions depend on it."""

FEW = ResultLimits(lines=10, entries=5, hits=4, hit_chars=20)

Call = Callable[..., Awaitable[tuple[str, str]]]


def built_in_toolbox(root: Path, cut_at: ResultLimits) -> Toolbox:
    return Toolbox([ToolServer("turnkeeper", built_in_tools(root, now=lambda: NOW, cut_at=cut_at))])


async def call_tool(
    toolbox: Toolbox,
    name: str,
    *,
    status: ToolStatus = "ok",
    session: str = "s",
    workspace: str = "",
    max_bytes: int = 120_000,
    **args,
) -> tuple[str, str]:
    """Call a tool that is to end with `status`: its outcome and its content."""
    invocation = ToolInvocation(
        session_id=session, call_id="1.1.0", name=name, args=args, workspace=workspace, max_bytes=max_bytes
    )
    result = await toolbox.call(invocation)
    assert result.status == status, result
    assert "\n" not in result.outcome
    assert len(result.content.encode()) <= max_bytes
    return result.outcome, result.content


@pytest.fixture
async def toolbox(tmp_path: Path) -> AsyncIterator[Toolbox]:
    async with built_in_toolbox(tmp_path, FEW) as toolbox:
        yield toolbox


@pytest.fixture
def call(toolbox: Toolbox) -> Call:
    """Call a tool that succeeds."""

    async def called(name: str, **args) -> tuple[str, str]:
        return await call_tool(toolbox, name, **args)

    return called


@pytest.fixture
def refused(toolbox: Toolbox) -> Callable[..., Awaitable[str]]:
    """Call a tool that refuses: the sentence it says."""

    async def called(name: str, **args) -> str:
        outcome, content = await call_tool(toolbox, name, status="error", **args)
        assert not content
        return outcome

    return called


def numbered(first: int, last: int) -> str:
    return "\n".join(f"line {number}" for number in range(first, last + 1))


# What they are


def test_agt_6_the_tools_are_described_as_in_the_mcp_sdk(tmp_path):
    for tool in built_in_tools(tmp_path, now=lambda: NOW):
        metadata = func_metadata(tool.function, skip_names=["call"], structured_output=False)
        described = metadata.arg_model.model_json_schema(by_alias=True)
        properties = {name: without_title(schema) for name, schema in described["properties"].items()}
        expected = {**without_title(described), "properties": properties, "additionalProperties": False}
        assert tool.input_schema == expected


def without_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}


async def test_ses_19_the_tool_specs_of_running_sessions_stay_byte_for_byte_the_same(toolbox):
    specs = (await toolbox.list_tools()).tools
    assert sha256("".join(spec.model_dump_json() for spec in specs).encode()).hexdigest() == SPECS_DIGEST


async def test_agt_6_the_tools_have_descriptions_and_declared_effects(toolbox):
    tools = {tool.name: tool for tool in (await toolbox.list_tools()).tools}
    assert {name: tool.effect for name, tool in tools.items()} == {
        "file_read": "read",
        "file_list": "read",
        "file_search": "read",
        "file_write": "idempotent",
        "now": "read",
    }
    for tool in tools.values():
        assert tool.built_in
        assert "A second run" in tool.description


def test_agt_6_only_file_write_is_declared_destructive(tmp_path):
    tools = built_in_tools(tmp_path, now=lambda: NOW)
    assert [tool.name for tool in tools if tool.annotations.destructive_hint] == ["file_write"]


async def test_ops_8_every_quick_read_is_a_read_only_built_in_tool(toolbox):
    assert {tool.name for tool in (await toolbox.list_tools()).tools if tool.is_quick_read} == QUICK_READS


async def test_agt_7_unknown_arguments_are_rejected_and_schemas_have_no_titles(toolbox):
    for tool in (await toolbox.list_tools()).tools:
        assert tool.input_schema["additionalProperties"] is False
        assert "title" not in json.dumps(tool.input_schema)


# Reading


async def test_agt_6_a_file_is_read_as_shown_in_seed_5(call, tmp_path):
    (tmp_path / "config.yml").write_text("database:\n  host: localhost\n")
    assert await call("file_read", path="config.yml") == ("Read config.yml", "database:\n  host: localhost")


async def test_agt_6_a_written_file_is_read_from_the_sessions_own_folder(call, tmp_path):
    mine = {"workspace": "team/mine"}
    assert await call("file_write", **mine, path="a/b.txt", content="é\n") == ("Wrote a/b.txt (3 bytes)", "")
    assert await call("file_write", **mine, path="a/b.txt", content="é\n") == ("Wrote a/b.txt (3 bytes)", "")
    assert await call("file_read", **mine, path="a/b.txt") == ("Read a/b.txt", "é")
    assert (tmp_path / "team" / "mine" / "a" / "b.txt").read_bytes() == "é\n".encode()
    assert await call("file_list", workspace="team/other") == ("Listed the workspace: 0 entries", "")


async def test_api_4_a_tenants_files_are_out_of_reach_for_other_tenants(toolbox, tmp_path):
    sessions = {"": "chat-1", "acme": "acme:chat-1", "globex": "globex:chat-1"}
    for tenant, session in sessions.items():
        for workspace in ("", "team"):
            content = f"of {tenant!r} in {workspace!r}"
            await call_tool(toolbox, "file_write", session=session, workspace=workspace, path="f", content=content)
    assert (tmp_path / "team" / "f").read_text() == "of '' in 'team'"
    assert (tmp_path / ".tenants" / "acme" / "team" / "f").read_text() == "of 'acme' in 'team'"
    for tenant, session in sessions.items():
        for workspace in ("", "team"):
            _, content = await call_tool(toolbox, "file_read", session=session, workspace=workspace, path="f")
            assert content == f"of {tenant!r} in {workspace!r}"
        _, listed = await call_tool(toolbox, "file_list", session=session, pattern="**")
        assert [line for line in listed.splitlines() if "tenants" in line or "acme" in line or "globex" in line] == []
        for path in (".tenants/acme/f", "../acme/f", "../../f", "team/../../globex/f"):
            await call_tool(toolbox, "file_read", status="error", session=session, path=path)
        for workspace in (".tenants/acme", "../acme", "..", "/"):
            await call_tool(toolbox, "file_read", status="error", session=session, workspace=workspace, path="f")


@pytest.mark.parametrize(
    ("first", "last", "outcome", "content"),
    [
        (1, 3, "Read f: lines 1-3 of 9", numbered(1, 3)),
        (4, 4, "Read f: line 4 of 9", numbered(4, 4)),
        (8, None, "Read f: lines 8-9 of 9", numbered(8, 9)),
        (2, 1_000, "Read f: lines 2-9 of 9", numbered(2, 9)),
        (1, 9, "Read f", numbered(1, 9)),
    ],
)
async def test_agt_6_a_range_of_lines_is_read(call, tmp_path, first, last, outcome, content):
    (tmp_path / "f").write_text(numbered(1, 9) + "\n")
    assert await call("file_read", path="f", first_line=first, last_line=last) == (outcome, content)


async def test_agt_6_an_invalid_range_is_rejected(refused, tmp_path):
    (tmp_path / "f").write_text(numbered(1, 9))
    assert (
        await refused("file_read", path="f", first_line=10) == "There are only 9 lines; first_line=10 lies behind them."
    )
    assert await refused("file_read", path="f", first_line=3, last_line=2) == "last_line=2 lies before first_line=3."


async def test_agt_6_only_a_line_feed_ends_a_line(call, tmp_path):
    text = "a\r\nb\x0cc\u2028d\x85e"
    (tmp_path / "f").write_bytes(text.encode())
    assert await call("file_read", path="f") == ("Read f", text)
    assert await call("file_read", path="f", first_line=2) == ("Read f: line 2 of 2", "b\x0cc\u2028d\x85e")


async def test_agt_6_an_empty_file_is_distinguished_from_one_with_an_empty_line(call, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "line").write_bytes(b"\n")
    assert await call("file_read", path="empty") == ("Read empty: it is empty", "")
    assert await call("file_read", path="line") == ("Read line", "")


@pytest.mark.parametrize("content", [b"GIF\x00\x01", "é".encode("latin-1"), "a".encode("utf-16"), b"\xed\xa0\x80"])
async def test_agt_6_a_binary_file_is_rejected_by_name(refused, tmp_path, content):
    (tmp_path / "image.gif").write_bytes(content)
    assert await refused("file_read", path="image.gif") == (
        "'image.gif' is binary; only UTF-8 text, images and PDFs can be read."
    )


async def test_agt_6_a_path_outside_of_the_workspace_is_a_clear_error(refused, tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    for tool in ("file_read", "file_list", "file_search"):
        more = {"query": "root"} if tool == "file_search" else {}
        assert "leaves the workspace" in await refused(tool, path="../x", **more)
        assert "absolute path" in await refused(tool, path="/etc/passwd", **more)
        assert "symbolic link" in await refused(tool, path="link", **more)
    assert "is hidden" in await refused("file_write", path=".env", content="")


async def test_agt_6_a_slow_disk_does_not_block_the_event_loop(call, monkeypatch):
    reading, released = threading.Event(), threading.Event()

    def read_slowly(_workspace, _path) -> bytes:
        reading.set()
        return b"released" if released.wait(BOUND) else b"blocked"

    monkeypatch.setattr(Workspace, "read", read_slowly)
    read = asyncio.create_task(call("file_read", path="f"))
    await asyncio.to_thread(reading.wait, BOUND)
    released.set()
    assert await read == ("Read f", "released")


# Cuts


async def test_ctx_14_a_long_file_is_cut_between_lines_with_a_hint_to_continue(call, tmp_path):
    (tmp_path / "f").write_text(numbered(1, 25))
    mark = "\n[cut here; read on with first_line={}]"
    assert await call("file_read", path="f") == ("Read f: lines 1-10 of 25", numbered(1, 10) + mark.format(11))
    second = await call("file_read", path="f", first_line=11, last_line=24)
    assert second == ("Read f: lines 11-20 of 25", numbered(11, 20) + mark.format(21))
    assert await call("file_read", path="f", first_line=21) == ("Read f: lines 21-25 of 25", numbered(21, 25))


async def test_ctx_14_a_session_with_little_room_gets_as_many_whole_lines_as_fit(call, tmp_path):
    (tmp_path / "f").write_text("\n".join(["é" * 100] * 9))
    outcome, content = await call("file_read", max_bytes=1_000, path="f")
    assert outcome == "Read f: lines 1-2 of 9"
    assert content == "\n".join(["é" * 100] * 2) + "\n[cut here; read on with first_line=3]"


async def test_ctx_14_an_enormous_line_can_be_read_piece_by_piece(call, tmp_path):
    text = "short\n" + "äb" * 40_000 + "\nend"
    (tmp_path / "f").write_text(text)
    outcome, content = await call("file_read", path="f")
    assert (outcome, content) == ("Read f: line 1 of 3", "short\n[cut here; read on with first_line=2]")
    outcome, content = await call("file_read", path="f", first_line=2)
    assert outcome == "Read f: a part of line 2 of 3"
    assert len(content.encode()) <= FEW.content_bytes
    pieces = ["short\n"]
    while cut := re.fullmatch(r"(.*)\n\[cut within the line; read on with first_line=2, first_column=(\d+)\]", content):
        pieces.append(cut[1])
        assert len(pieces) < 10
        _, content = await call("file_read", path="f", first_line=2, first_column=int(cut[2]))
    assert "".join(pieces) + content == text


async def test_ctx_14_a_long_list_is_cut_between_entries_with_a_hint_to_continue(call, tmp_path):
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text("x" * number)
    (tmp_path / "folder").mkdir()
    first = "0.txt (0 bytes)\n1.txt (1 byte)\n2.txt (2 bytes)\n3.txt (3 bytes)\n4.txt (4 bytes)"
    assert await call("file_list") == (
        "Listed the workspace: entries 1-5 of 8",
        f"{first}\n[cut here; go on with first_entry=6]",
    )
    second = await call("file_list", first_entry=6)
    assert second == ("Listed the workspace: entries 6-8 of 8", "5.txt (5 bytes)\n6.txt (6 bytes)\nfolder/")


async def test_ctx_14_many_hits_are_cut_between_hits_with_a_hint_to_continue(call, tmp_path):
    (tmp_path / "f").write_text(numbered(1, 6))
    outcome, content = await call("file_search", query="line")
    assert outcome == "Searched the workspace for 'line': hits 1-4 of 6"
    assert content == "f:1: line 1\nf:2: line 2\nf:3: line 3\nf:4: line 4\n[cut here; go on with first_hit=5]"
    rest = await call("file_search", query="line", first_hit=5)
    assert rest == ("Searched the workspace for 'line': hits 5-6 of 6", "f:5: line 5\nf:6: line 6")


async def test_ctx_14_a_hit_in_a_long_line_is_shown_with_its_surroundings(call, tmp_path):
    (tmp_path / "f").write_text("a" * 100 + "needle" + "b" * 100)
    _, content = await call("file_search", query="needle")
    assert content == "f:1: ...aaaaaaneedlebbbbbbbb..."


async def test_ctx_14_a_listing_or_search_that_stopped_early_says_so(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}").write_text("needle")
    async with built_in_toolbox(tmp_path, ResultLimits(walked_entries=2)) as toolbox:
        for tool, args in (("file_search", {"query": "needle"}), ("file_list", {"pattern": "*"})):
            _, content = await call_tool(toolbox, tool, **args)
            assert content.endswith("\n[only the first 2 files and folders were looked at; narrow it by path]")
            assert content.count("\n") == 2


async def test_ctx_14_a_search_lists_what_it_skipped(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}").write_text("needle")
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / "large").write_bytes(b"needle" + b" " * MAX_READ_BYTES)
    async with built_in_toolbox(tmp_path, ResultLimits(searched_bytes=20)) as toolbox:
        outcome, content = await call_tool(toolbox, "file_search", query="needle")
    assert outcome == "Searched the workspace for 'needle': 3 hits"
    assert content.endswith(
        "\n[3 files not searched, being binary, too large or too many; narrow it by path or pattern]"
    )


# Listing and searching


async def test_agt_6_a_folder_is_listed_without_symlinks_and_hidden_files(call, tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "a.txt").write_text("12")
    (tmp_path / "b" / ".hidden").write_text("")
    (tmp_path / "b" / "link").symlink_to("a.txt")
    assert await call("file_list", path="b") == ("Listed b: 2 entries", "b/a.txt (2 bytes)\nb/c/")


async def test_agt_6_a_pattern_lists_the_matching_files_of_all_subfolders(call, tmp_path):
    for path in ("src/a.py", "src/deep/b.py", "src/c.txt", "d.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    assert (await call("file_list", path="src", pattern="*.py"))[1] == "src/a.py (0 bytes)\nsrc/deep/b.py (0 bytes)"
    assert (await call("file_list", path="src", pattern="deep/*"))[1] == "src/deep/b.py (0 bytes)"


async def test_agt_6_a_search_finds_plain_text_in_a_file_or_under_a_folder(call, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("one .* two\nONE\n")
    (tmp_path / "b.md").write_text("one\r\n")
    assert (await call("file_search", query=".*"))[1] == "a/x.txt:1: one .* two"
    assert (await call("file_search", query="one", path="b.md"))[1] == "b.md:1: one"
    assert (await call("file_search", query="oNe", pattern="*.txt", ignore_case=True))[1] == (
        "a/x.txt:1: one .* two\na/x.txt:2: ONE"
    )
    assert await call("file_search", query="nowhere") == ("Searched the workspace for 'nowhere': 0 hits", "")


async def test_agt_6_a_search_for_several_lines_is_rejected(refused):
    assert "within one line" in await refused("file_search", query="a\nb")


async def test_agt_6_a_pipe_in_the_workspace_does_not_block_a_search(call, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert await call("file_search", query="x") == ("Searched the workspace for 'x': 0 hits", "")


@pytest.mark.parametrize(
    ("path", "pattern", "is_fitting"),
    [
        ("a/b/c.py", "*.py", True),
        ("c.py", "*.py", True),
        ("a/b/c.py", "a/*.py", False),
        ("a/b/c.py", "a/*/c.py", True),
        ("a/c.py", "a/**/c.py", True),
        ("a/x/y/c.py", "a/**/c.py", True),
        ("c.py", "**/c.py", True),
        ("a/b", "a/**", True),
        ("a/b", "**", True),
        ("ac.py", "a/**/c.py", False),
        ("a/b.py", "?/[bc].py", True),
        ("A.PY", "*.py", False),
    ],
)
def test_agt_6_a_pattern_matches_as_in_a_shell(path, pattern, is_fitting):
    assert fits(path, pattern) is is_fitting


@given(st.text("a*/?[", max_size=60), st.integers(1, 60))
def test_agt_6_no_pattern_makes_a_search_hang(pattern, depth):
    fits("/".join(["a" * 60] * depth), pattern)


# The clock


@pytest.mark.parametrize(
    ("args", "outcome"),
    [
        ({}, "It is 2026-11-20T23:30:00+00:00, a Friday (UTC)"),
        ({"timezone": "Asia/Tokyo"}, "It is 2026-11-21T08:30:00+09:00, a Saturday (Asia/Tokyo)"),
    ],
)
async def test_agt_6_the_time_is_returned_in_a_time_zone(call, args, outcome):
    assert await call("now", **args) == (outcome, "")


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "/etc/passwd", "Europe", "", "\0"])
async def test_agt_6_an_unknown_time_zone_is_rejected(refused, zone):
    assert await refused("now", timezone=zone) == (
        f"There is no time zone {zone!r}; IANA names such as 'Europe/Berlin' are allowed."
    )
