"""The built-in tools, over the sessions' workspaces (AGT-6).

They are described as an MCP server would list them, and called directly: their results are those of a server in this
process, at a fifth of its CPU time, and the SDK stays unloaded where no other server is configured.

A result is a line with the outcome, then the content. If the content is too long it is cut between whole lines, entries
or hits, with a mark that says with which argument to continue (CTX-14).

A tool runs in a thread, so files never block the event loop.
"""

import asyncio
import inspect
import logging
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import accumulate, islice
from operator import or_
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, JsonValue, ValidationError, create_model

from turnkeeper.activities.toolbox.tool_server import ToolHints, ToolServer
from turnkeeper.activities.toolbox.workspace import (
    MAX_WRITE_BYTES,
    Entry,
    MissingError,
    Workspace,
    WorkspaceError,
    check_size,
)
from turnkeeper.models.ids import WorkflowId, tenant_of
from turnkeeper.models.session.approvals import NO_DIFFERENCE
from turnkeeper.models.session.file_changes import unified_diff
from turnkeeper.models.texts import bound_json, counted, head_within, plural
from turnkeeper.models.transcript.attachments import (
    MAX_ATTACHMENT_BYTES,
    MAX_NAME_CHARS,
    PDF,
    FileAttachment,
    ImageAttachment,
    detect_image_type,
)
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation

MAX_THREADS = 40
"""Calls that run at once; others wait. A call that hangs on a dead disk keeps its thread."""

NOTE_BYTES = 400
"""Maximum of the note of a change, as JSON; `CHANGE_BYTES` has room for it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResultLimits:
    """Limits of one result, and of the work for it."""

    content_bytes: int = 24_000
    """As UTF-8; less if the session can accept only less."""
    lines: int = 400
    entries: int = 500
    hits: int = 100
    hit_chars: int = 300
    """Characters of a line with a hit; the text around the hit is shown."""
    walked_entries: int = 20_000
    """Files and folders that one search visits."""
    searched_bytes: int = 100_000_000


@dataclass(frozen=True)
class BuiltInTool:
    """A tool as an MCP server lists it, the function that runs it, and the model of its arguments."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]
    annotations: ToolHints
    function: Callable[..., ToolResult]
    arguments: type[BaseModel]
    preview_function: Callable[..., FileChange] | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., ToolResult],
        annotations: ToolHints,
        *,
        preview: Callable[..., FileChange] | None = None,
    ) -> "BuiltInTool":
        """Return the tool of a function, whose first parameter is the call and whose docstring the model reads.

        `preview` has the same parameters, and `max_bytes`.
        """
        name, (_, *parameters) = function.__name__, inspect.signature(function).parameters.values()
        fields: dict[str, Any] = {
            parameter.name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
            for parameter in parameters
        }
        arguments = create_model(f"{name}Arguments", **fields)
        schema = arguments.model_json_schema()
        # Without titles, to save tokens; and unknown arguments are an error and not silently ignored.
        properties = {name: _drop_title(schema) for name, schema in schema["properties"].items()}
        # In this order: sessions hold these schemas as they are, and so do the vendors' caches.
        schema = {"type": "object", **_drop_title(schema), "properties": properties, "additionalProperties": False}
        return cls(name, inspect.getdoc(function) or "", schema, annotations, function, arguments, preview)

    def run(self, invocation: ToolInvocation) -> ToolResult:
        """Run a call, in this thread, and return its result. Every failure is one."""
        try:
            arguments = self.arguments.model_validate(invocation.args)
            return self.function(invocation, **dict(arguments))
        except WorkspaceError as error:
            return ToolResult(outcome=str(error), status="error")
        except ValidationError as error:
            return ToolResult(outcome=f"Error executing tool {self.name}: {error}", status="error")
        except Exception:  # noqa: BLE001  # whatever it is, the model reads a result
            _log.exception("the built-in tool %r failed", self.name)
            return ToolResult(outcome=f"Error executing tool {self.name}", status="error")

    def preview(self, invocation: ToolInvocation, max_bytes: int) -> FileChange:
        """Return what a call would change in its file, in this thread. Every failure is a note."""
        assert self.preview_function is not None  # noqa: S101  # as `FILE_WRITERS` says
        try:
            arguments = self.arguments.model_validate(invocation.args)
            return self.preview_function(invocation, **dict(arguments), max_bytes=max_bytes)
        except WorkspaceError as error:
            return FileChange(note=bound_json(f"Nothing can be written: {error}", NOTE_BYTES, NOTE_BYTES))
        except ValidationError:
            return FileChange(note="Nothing can be written: the arguments don't fit the tool.")
        except Exception:  # noqa: BLE001  # the person is asked all the same
            _log.exception("the preview of the built-in tool %r failed", self.name)
            return FileChange(note=NO_DIFFERENCE)


def built_in_tools(
    root: Path, *, now: Callable[[], datetime], cut_at: ResultLimits | None = None, off_limits: Collection[Path] = ()
) -> list[BuiltInTool]:
    """Return the built-in tools, over the folders below `root`, without access to `off_limits`.

    `now` returns the time with a time zone.
    """
    files = _FileTools(root, cut_at or ResultLimits(), off_limits)
    reads = ToolHints(read_only_hint=True, open_world_hint=False)
    replaces = ToolHints(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    return [
        BuiltInTool.of(files.file_read, reads),
        BuiltInTool.of(files.file_list, reads),
        BuiltInTool.of(files.file_search, reads),
        BuiltInTool.of(files.file_write, replaces, preview=files.preview_write),
        BuiltInTool.of(_Clock(now).now, reads),
    ]


class BuiltInConnection:
    """The built-in tools as the toolbox uses a server. They are always known and never change."""

    is_known = True
    problem = reason = instructions = ""

    def __init__(self, server: ToolServer, tools: Iterable[BuiltInTool]) -> None:
        self.server = server
        self.tools = list(tools)
        self._by_name = {tool.name: tool for tool in self.tools}
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="built-in-tool")

    def start_listing(self) -> None:
        """Do nothing: there is nothing to read."""

    async def refresh(self) -> None:
        """Do nothing: built-in tools never change."""

    async def call(self, name: str, invocation: ToolInvocation) -> ToolResult:
        """Run the tool `name` in a thread. If the caller is cancelled, it does not wait for the thread."""
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._threads, run, self._by_name[name].run, invocation)

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        """Return what a call of a tool in `FILE_WRITERS` would change; in a thread, as `call`."""
        run, tool = copy_context().run, self._by_name[invocation.name]
        return await asyncio.get_running_loop().run_in_executor(self._threads, run, tool.preview, invocation, max_bytes)

    async def aclose(self) -> None:
        """End the threads that have nothing to do, and the others after their calls."""
        self._threads.shutdown(wait=False)


PathArgument = Annotated[str, Field(description="Relative to the workspace, such as src/main.py")]
PatternArgument = Annotated[
    str | None,
    Field(
        description="Only files that fit, such as *.py (in any folder) or docs/**/*.md", min_length=1, max_length=500
    ),
]
QueryArgument = Annotated[str, Field(description="Plain text within one line", min_length=1, max_length=500)]
ContentArgument = Annotated[str, Field(description="All of the new content")]
ZoneArgument = Annotated[str, Field(description="An IANA name, such as Europe/Berlin", max_length=100)]
CountArgument = Annotated[int, Field(ge=1, le=1_000_000_000)]


class _FileTools:
    """The tools over the files of a workspace. Their docstrings are what the model reads."""

    def __init__(self, root: Path, cut_at: ResultLimits, off_limits: Collection[Path]) -> None:
        self._root = root
        self._cut_at = cut_at
        self._off_limits = off_limits

    def file_read(
        self,
        call: ToolInvocation,
        path: PathArgument,
        first_line: CountArgument = 1,
        last_line: CountArgument | None = None,
        first_column: CountArgument = 1,
    ) -> ToolResult:
        """Read a text file, or its lines from first_line to last_line; the first of them from first_column on.

        Images and PDFs can be read as a whole. A second run reads the file again, as it is then.
        """
        content = self._workspace(call).read(path)
        if medium := _medium_in(path, content):
            return medium
        text = _text_in(content)
        if text is None:
            raise WorkspaceError(f"{path!r} is binary; only UTF-8 text, images and PDFs can be read.")
        if last_line is not None and last_line < first_line:
            raise WorkspaceError(f"last_line={last_line} lies before first_line={first_line}.")
        excerpt = _Excerpt(path, _lines_of(text), first_line, last_line, first_column)
        return excerpt.result(self._cut_at.lines, self._room(call))

    def file_list(
        self,
        call: ToolInvocation,
        path: PathArgument = ".",
        pattern: PatternArgument = None,
        first_entry: CountArgument = 1,
    ) -> ToolResult:
        """List a folder; with a pattern, the files that fit in it and in all folders below it.

        A second run lists again what is there then.
        """
        workspace = self._workspace(call)
        notes: list[str] = []
        if pattern is None:
            entries = workspace.entries(path)
        else:
            entries, notes = self._files(workspace, path, pattern)
        lines_on_page = [_entry_line(entry) for entry in entries[first_entry - 1 :][: self._cut_at.entries]]
        part = _Part("entry", lines_on_page, first_entry, len(entries))
        return part.result(f"Listed {_display_path(path)}", notes, self._room(call))

    def file_search(
        self,
        call: ToolInvocation,
        query: QueryArgument,
        path: PathArgument = ".",
        pattern: PatternArgument = None,
        ignore_case: bool = False,
        first_hit: CountArgument = 1,
    ) -> ToolResult:
        """Find the lines that hold a text, in a file or in the files of a folder and of all folders below it.

        A second run searches again what is there then.
        """
        if "\n" in query:
            raise WorkspaceError("The query holds a line break; a text within one line is allowed.")
        workspace = self._workspace(call)
        files, notes = self._files(workspace, path, pattern or "*")
        search = _Search(query, ignore_case=ignore_case, first=first_hit, cut_at=self._cut_at)
        for file in files:
            search.look_into(workspace, file)
        part = _Part("hit", search.lines_on_page, first_hit, search.total)
        return part.result(f"Searched {_display_path(path)} for {query!r}", [*notes, *search.notes()], self._room(call))

    def file_write(self, call: ToolInvocation, path: PathArgument, content: ContentArgument) -> ToolResult:
        """Create a text file, or replace all of its content. Missing folders are made.

        A second run with the same arguments has no further effect.
        """
        encoded = content.encode()
        self._workspace(call).write(path, encoded, instead_of=call.file_sha256)
        return _result(f"Wrote {path} ({counted(len(encoded), 'byte')})")

    def preview_write(self, call: ToolInvocation, path: str, content: str, *, max_bytes: int) -> FileChange:
        """Return the difference that `file_write` would make now."""
        encoded, workspace = content.encode(), self._workspace(call)
        check_size(path, encoded)
        try:
            size = workspace.entry(path).size
        except MissingError:
            return FileChange(note=f"The file is new ({counted(len(encoded), 'byte')}).", sha256="")
        # Without the path, which the model chose: it could imitate a note. The arguments have it.
        replaced = "The file exists, and all of its content is replaced"
        if size > MAX_WRITE_BYTES:
            note = f"{replaced}. It is too large to compare ({counted(size, 'byte')})."
            return FileChange(note=note, sha256=workspace.digest(path))
        before = workspace.read(path)
        digest, text = sha256(before).hexdigest(), _text_in(before)
        if before == encoded:
            return FileChange(note="The file has exactly this content already.", sha256=digest)
        if text is None:
            return FileChange(note=f"{replaced}. It is binary ({counted(size, 'byte')}).", sha256=digest)
        diff, omitted = unified_diff(text, content, max_bytes=max_bytes)
        return FileChange(note=f"{replaced}:", diff=diff, omitted_lines=omitted, sha256=digest)

    def _workspace(self, call: ToolInvocation) -> Workspace:
        # By the activity's own workflow id: no input of a session decides whose files it reads.
        tenant = tenant_of(WorkflowId(call.session_id))
        return Workspace.at(self._root, call.workspace, tenant=tenant, off_limits=self._off_limits)

    def _room(self, call: ToolInvocation) -> int:
        """Return how many bytes of lines a result may contain; the rest is for notes."""
        # The smaller of both limits in bytes satisfies both: a character has at least one byte.
        room = min(self._cut_at.content_bytes, call.max_chars, call.max_bytes)
        return max(room // 2, room - 400)

    def _files(self, workspace: Workspace, path: str, pattern: str) -> tuple[list[Entry], list[str]]:
        """Return the files at and below `path` that match, and a note if there are too many to visit."""
        max_walked = self._cut_at.walked_entries
        top = workspace.entry(path).path
        entries_seen = list(islice(workspace.walk(path), max_walked + 1))
        files = [
            entry
            for entry in entries_seen[:max_walked]
            if not entry.is_folder and fits(entry.path.removeprefix(top).lstrip("/") or entry.path, pattern)
        ]
        note = f"only the first {max_walked:,} files and folders were looked at; narrow it by path"
        return files, [note] if len(entries_seen) > max_walked else []


class _Clock:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def now(self, call: ToolInvocation, timezone: ZoneArgument = "UTC") -> ToolResult:
        """Tell the date and the time.

        A second run tells a later time.
        """
        moment = self._now().astimezone(_zone(timezone))
        return _result(f"It is {moment.isoformat(timespec='seconds')}, a {moment:%A} ({timezone})")


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # works without time zone data too
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise WorkspaceError(
            f"There is no time zone {name!r}; IANA names such as 'Europe/Berlin' are allowed."
        ) from error


@dataclass(frozen=True)
class _Excerpt:
    """A range of lines of a file: `first` to `last`, from 1; of the first line, the text from `column` on."""

    path: str
    lines: list[str]
    first: int
    last: int | None
    column: int

    def result(self, most_lines: int, room: int) -> ToolResult:
        """Return as many whole lines as fit, or else a piece of the first one."""
        total = len(self.lines)
        _check_first(self.first, total, "line")
        if not total:
            return _result(f"Read {self.path}: it is empty")
        selected = self.lines[self.first - 1 : self.last]
        selected[:1] = [line[self.column - 1 :] for line in selected[:1]]
        lines_shown = _whole_lines(selected[:most_lines], room)
        if not lines_shown:
            return self._within_one_line(head_within(selected[0], room))
        last = self.first + len(lines_shown) - 1
        notes = [f"cut here; read on with first_line={last + 1}"] if len(lines_shown) < len(selected) else []
        is_whole = len(lines_shown) == total and self.column == 1
        span = "" if is_whole else f": {_span(self.first, last, total, 'line')}"
        return _result(f"Read {self.path}{span}", lines_shown, notes)

    def _within_one_line(self, piece: str) -> ToolResult:
        continue_note = (
            f"cut within the line; read on with first_line={self.first}, first_column={self.column + len(piece)}"
        )
        return _result(f"Read {self.path}: a part of line {self.first} of {len(self.lines)}", [piece], [continue_note])


@dataclass(frozen=True)
class _Part:
    """A page of entries or hits: the lines `lines_on_page`, which begin with number `first` of `total`."""

    unit: str
    lines_on_page: list[str]
    first: int
    total: int

    def result(self, subject: str, notes: Sequence[str], room: int) -> ToolResult:
        """Return as many whole lines as fit, and `notes` about what is not in the `total`."""
        _check_first(self.first, self.total, self.unit)
        lines_shown = _whole_lines(self.lines_on_page, room) or self.lines_on_page[:1]
        last = self.first + len(lines_shown) - 1
        continue_note = [f"cut here; go on with first_{self.unit}={last + 1}"] if last < self.total else []
        return _result(
            f"{subject}: {_span(self.first, last, self.total, self.unit)}", lines_shown, [*continue_note, *notes]
        )


class _Search:
    """A search: collects the hits to show, and counts all."""

    def __init__(self, query: str, *, ignore_case: bool, first: int, cut_at: ResultLimits) -> None:
        self._fold = str.casefold if ignore_case else str
        self._query = self._fold(query)
        self._shown_range = range(first, first + cut_at.hits)
        self._hit_chars = cut_at.hit_chars
        self._bytes_left = cut_at.searched_bytes
        self._skipped = 0
        self.lines_on_page: list[str] = []
        self.total = 0

    def look_into(self, workspace: Workspace, file: Entry) -> None:
        text = self._text_of(workspace, file)
        if text is None:
            self._skipped += 1
        elif self._query in self._fold(text):
            for number, line in enumerate(_lines_of(text), start=1):
                if (at := self._fold(line).find(self._query)) >= 0:
                    self._add(f"{file.path}:{number}: {_around(line, at, self._hit_chars)}")

    def notes(self) -> list[str]:
        what = "not searched, being binary, too large or too many; narrow it by path or pattern"
        return [f"{counted(self._skipped, 'file')} {what}"] if self._skipped else []

    def _text_of(self, workspace: Workspace, file: Entry) -> str | None:
        if file.size > self._bytes_left:
            return None
        self._bytes_left -= file.size
        try:
            return _text_in(workspace.read(file.path))
        except WorkspaceError:  # too large, or gone by now
            return None

    def _add(self, hit: str) -> None:
        self.total += 1
        if self.total in self._shown_range:
            self.lines_on_page.append(hit)


def fits(path: str, pattern: str) -> bool:
    """Return whether `path` matches: `*` and `?` within a name, `**` over folders, no "/" in any folder.

    The time is at most proportional to path times pattern, also for malicious ones.

    >>> fits("a/b/c.py", "*.py"), fits("a/b/c.py", "a/*.py"), fits("a/b/c.py", "a/**/*.py"), fits("a/c.py", "a/**/*.py")
    (True, False, True, True)
    """
    names = path.split("/")
    # After each part of the pattern: whether the pattern so far matches the first 0, 1, 2, ... names.
    fitting = [True] + [False] * len(names)
    for part in pattern.split("/") if "/" in pattern else ["**", pattern]:
        if part == "**":
            fitting = list(accumulate(fitting, or_))
        else:
            fitting = [False] + [
                before and fnmatchcase(name, part) for before, name in zip(fitting, names, strict=False)
            ]
    return fitting[-1]


def _text_in(content: bytes) -> str | None:
    """Return the text that `content` encodes, or `None` if it is binary."""
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _medium_in(path: str, content: bytes) -> ToolResult | None:
    """Return the result of reading an image or a PDF; `None` if the content is neither."""
    media_type = detect_image_type(content) or (PDF if content.startswith(b"%PDF-") else None)
    if media_type is None:
        return None
    kind = "a PDF" if media_type == PDF else f"an image ({media_type})"
    if len(content) > MAX_ATTACHMENT_BYTES:
        raise WorkspaceError(f"{path!r} is {kind} of {len(content):,} bytes; {MAX_ATTACHMENT_BYTES:,} are allowed.")
    name = "".join(filter(str.isprintable, PurePosixPath(path).name))[:MAX_NAME_CHARS]
    fields = {"name": name, "media_type": media_type, "data": b64encode(content).decode()}
    attachment = (
        FileAttachment.model_validate({"type": "file", **fields})
        if media_type == PDF
        else ImageAttachment.model_validate({"type": "image", **fields})
    )
    return ToolResult(outcome=f"Read {path}: {kind}, {counted(len(content), 'byte')}", attachments=[attachment])


def _lines_of(text: str) -> list[str]:
    # Only "\n" ends a line: `splitlines` would also count form feeds and other characters that editors don't.
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _whole_lines(lines: list[str], room: int) -> list[str]:
    ends = accumulate(len(line.encode()) + 1 for line in lines)
    return lines[: sum(end <= room for end in ends)]


def _around(line: str, at: int, width: int) -> str:
    start = max(0, min(at - width // 3, len(line) - width))
    before, after = "..." if start else "", "..." if start + width < len(line) else ""
    return f"{before}{line[start : start + width].rstrip()}{after}"


def _display_path(path: str) -> str:
    return "the workspace" if PurePosixPath(path) == PurePosixPath() else path


def _entry_line(entry: Entry) -> str:
    return f"{entry.path}/" if entry.is_folder else f"{entry.path} ({counted(entry.size, 'byte')})"


def _check_first(first: int, total: int, unit: str) -> None:
    if first > max(1, total):
        raise WorkspaceError(f"There are only {counted(total, unit)}; first_{unit}={first} lies behind them.")


def _span(first: int, last: int, total: int, unit: str) -> str:
    if (first, last) == (1, total):
        return counted(total, unit)
    return f"{unit} {first} of {total}" if first == last else f"{plural(unit)} {first}-{last} of {total}"


def _result(outcome: str, lines: Sequence[str] = (), notes: Sequence[str] = ()) -> ToolResult:
    return ToolResult(outcome=outcome, content="\n".join([*lines, *(f"[{note}]" for note in notes)]))


def _drop_title(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
