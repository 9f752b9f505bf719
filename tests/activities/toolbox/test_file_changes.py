"""The change that `file_write` would make, shown before approval and checked when it runs: AGT-8."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.activities.toolbox.workspace import MAX_WRITE_BYTES
from turnkeeper.models.session.approvals import CHANGE_BYTES
from turnkeeper.models.session.file_changes import NO_LINE_END, unified_diff
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import FILE_WRITERS, ToolInvocation

OLD = "".join(f"line {number}\n" for number in range(1, 41))
NEW = OLD.replace("line 7\n", "line seven\n").replace("line 30\n", "") + "line 41\n"
CHANGED = "'plan.md' was not written: the file has changed since this was approved. Read it again first."

TEXT_LINES = st.lists(st.sampled_from(["a", "b", "", " ", "-x", "+y", "@@"]), max_size=30)


def digest(content: str | bytes) -> str:
    return sha256(content.encode() if isinstance(content, str) else content).hexdigest()


@pytest.fixture
async def toolbox(tmp_path: Path) -> AsyncIterator[Toolbox]:
    tools = built_in_tools(tmp_path, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    async with Toolbox([ToolServer("turnkeeper", tools)]) as toolbox:
        yield toolbox


def invocation(content: str = NEW, *, path: str = "plan.md", seen: str | None = None) -> ToolInvocation:
    args = {"path": path, "content": content}
    return ToolInvocation(session_id="s", call_id="1.1.0", name="file_write", args=args, file_sha256=seen)


async def preview(toolbox: Toolbox, content: str = NEW, *, path: str = "plan.md", max_bytes: int = 8_000) -> FileChange:
    return await toolbox.preview(invocation(content, path=path), max_bytes=max_bytes)


async def write(toolbox: Toolbox, content: str, *, seen: str | None) -> ToolResult:
    return await toolbox.call(invocation(content, seen=seen))


async def test_agt_8_a_replaced_file_is_shown_as_a_unified_diff(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text(OLD)
    assert await preview(toolbox) == FileChange(
        note="The file exists, and all of its content is replaced:",
        diff="\n".join(
            [
                *("@@ -4,7 +4,7 @@", " line 4", " line 5", " line 6", "-line 7", "+line seven"),
                *(" line 8", " line 9", " line 10"),
                *("@@ -27,7 +27,6 @@", " line 27", " line 28", " line 29", "-line 30"),
                *(" line 31", " line 32", " line 33"),
                *("@@ -38,3 +37,4 @@", " line 38", " line 39", " line 40", "+line 41"),
            ]
        ),
        sha256=digest(OLD),
    )
    assert (tmp_path / "plan.md").read_text() == OLD


async def test_agt_8_a_shortened_diff_says_so(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text(OLD)
    change = await preview(toolbox, "all new\n" * 500, max_bytes=200)
    assert len(change.diff) <= 200
    assert change.diff.count("\n") + 1 + change.omitted_lines == 1 + 40 + 500


@pytest.mark.parametrize(
    ("before", "note", "seen"),
    [
        (None, "The file is new (5 bytes).", ""),
        (b"\xff\xfe", "The file exists, and all of its content is replaced. It is binary (2 bytes).", None),
        (b"new.\n", "The file has exactly this content already.", None),
        (
            b"x" * (MAX_WRITE_BYTES + 1),
            "The file exists, and all of its content is replaced. It is too large to compare (1,000,001 bytes).",
            None,
        ),
    ],
)
async def test_agt_8_a_file_without_a_diff_is_described(
    toolbox: Toolbox, tmp_path: Path, before: bytes | None, note: str, seen: str | None
) -> None:
    if before is not None:
        (tmp_path / "plan.md").write_bytes(before)
    expected = seen if seen is not None else digest(before or b"")
    assert await preview(toolbox, "new.\n") == FileChange(note=note, sha256=expected)
    result = await write(toolbox, "new.\n", seen=expected)
    assert result.status == "ok"
    assert (tmp_path / "plan.md").read_text() == "new.\n"


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("../x", "", "'../x' leaves the workspace"),
        ("folder", "", "'folder' is a folder"),
        ("big", "x" * (MAX_WRITE_BYTES + 1), "'big' was not written: 1,000,001 bytes"),
    ],
)
async def test_agt_8_the_preview_of_a_write_that_will_fail_says_so(
    toolbox: Toolbox, tmp_path: Path, path: str, content: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    change = await preview(toolbox, content, path=path)
    if path != "folder":
        assert change.note.startswith(f"Nothing can be written: {why}")
        assert change.sha256 is None
    assert (await toolbox.call(invocation(content, path=path, seen=change.sha256))).outcome.startswith(why)


@pytest.mark.parametrize("now", [None, "of somebody else\n", OLD + "more\n"])
async def test_agt_8_a_file_that_has_changed_since_is_not_written(
    toolbox: Toolbox, tmp_path: Path, now: str | None
) -> None:
    file = tmp_path / "plan.md"
    if now is not None:
        file.write_text(now)
    result = await write(toolbox, NEW, seen=digest(OLD))
    assert (result.status, result.outcome) == ("error", CHANGED)
    assert (file.read_text() if file.exists() else None) == now


async def test_agt_8_a_file_that_was_new_is_not_replaced(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text(OLD)
    assert (await write(toolbox, NEW, seen="")).outcome == CHANGED
    assert (tmp_path / "plan.md").read_text() == OLD


async def test_agt_7_a_second_attempt_of_an_approved_write_finds_it_done(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text(OLD)
    for _ in range(2):
        assert (await write(toolbox, NEW, seen=digest(OLD))).status == "ok"
    assert (tmp_path / "plan.md").read_text() == NEW


async def test_agt_8_only_one_of_several_concurrent_approved_writes_takes_effect(
    toolbox: Toolbox, tmp_path: Path
) -> None:
    (tmp_path / "plan.md").write_text(OLD)
    contents = [f"version {number}\n" for number in range(8)]
    results = await asyncio.gather(*(write(toolbox, content, seen=digest(OLD)) for content in contents))
    (content_of_one,) = [content for content, result in zip(contents, results, strict=True) if result.status == "ok"]
    assert (tmp_path / "plan.md").read_text() == content_of_one
    assert {result.outcome for result in results if result.status != "ok"} == {CHANGED}


async def test_agt_8_every_tool_in_the_list_has_a_preview(tmp_path: Path) -> None:
    tools = built_in_tools(tmp_path, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    assert {tool.name for tool in tools if tool.preview_function} == FILE_WRITERS


@given(TEXT_LINES, TEXT_LINES, st.booleans(), st.booleans())
def test_agt_8_applying_a_diff_to_the_old_text_gives_the_new_one(
    before: list[str], after: list[str], old_ends: bool, new_ends: bool
) -> None:
    old = "\n".join(before) + ("\n" if before and old_ends else "")
    new = "\n".join(after) + ("\n" if after and new_ends else "")
    diff, omitted = unified_diff(old, new, max_bytes=1_000_000)
    assert omitted == 0
    assert (diff == "") == (old == new)
    assert applied(old, diff) == new


def applied(old: str, diff: str) -> str:
    """Apply a unified difference, as `patch` does."""
    *lines, rest = old.split("\n")
    source = [f"{line}\n" for line in lines] + ([rest] if rest else [])
    result, position, last = list[str](), 0, ""
    for line in diff.split("\n") if diff else []:
        if line.startswith("@@ -"):
            start, count = map(int, line.split()[1][1:].split(","))
            first = start - 1 if count else start
            result += source[position:first]
            position = first
        elif line == NO_LINE_END:
            if last != "-":
                result[-1] = result[-1].removesuffix("\n")
        else:
            if line[0] in " -":
                assert source[position].removesuffix("\n") == line[1:]
                position += 1
            if line[0] in " +":
                result.append(f"{line[1:]}\n")
            last = line[0]
    return "".join([*result, *source[position:]])


SPOOF = "notes.txt has exactly this content already. (see new"


@pytest.mark.parametrize("path", [SPOOF, f"{SPOOF}/{'x' * 100_000}", "\U000e0001" * 80, "\\'\"" * 40, "../" + SPOOF])
async def test_agt_8_no_path_can_imitate_the_note_of_a_change(toolbox: Toolbox, tmp_path: Path, path: str) -> None:
    change = await preview(toolbox, path=path)
    assert change.note.startswith(("The file is new (", "Nothing can be written: '", 'Nothing can be written: "'))
    assert len(to_json(change)) <= CHANGE_BYTES
