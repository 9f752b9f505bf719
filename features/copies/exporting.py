"""Exports: a session as one JSON document, or as Markdown for people (SES-18).

One query gives the configuration, the newest turns and the model's context, all of the same moment; the archive has the
turns before, which never change. So the document is written as it is sent, and the gateway has a small part of it in
memory. If the archive fails in the middle, the connection ends in the middle of the JSON.

In Markdown, what people and models have written is quoted, and what tools have returned is in fences, so that nothing
in it can look like a part of this text. HTML is escaped outside fences.
"""

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Any

from pydantic_core import to_json

from turnkeeper.api.services import Services
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.features.copies.document.copied import SessionSnapshot, StoredContents, snapshot_of
from turnkeeper.features.copies.document.document import FORMAT, SNAPSHOT, VERSION, ExportedConfiguration, ExportedTurn
from turnkeeper.features.copies.whole_turns import whole_turns
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.attachments import Attachment, placeholder_text
from turnkeeper.models.transcript.conversation import ConversationMessage, MessageRole, ModelStep, ToolCall, dollars
from turnkeeper.models.transcript.large_texts import refs_in, resolve_turn
from turnkeeper.stores.blobs import attachments_owner

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_FENCE = re.compile(r"(`{3,}(?!.*`)|~{3,})")
"""Opens a fence wherever it stands. Indented, it may be in a list item, and end with it."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&])")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def markdown_head(session_id: str, snapshot: SessionSnapshot, *, now: datetime) -> str:
    config, usage = snapshot.config, snapshot.facts.usage
    cost = f", {dollars(usage.cost)}" if usage.cost is not None else ""
    facts = [
        f"Session: {_plain(session_id)}",
        *([f"User: {_plain(config.user)}"] if config.user else []),
        f"Model: {_plain(config.model)}",
        f"Began: {_time(snapshot.facts.created_at)}",
        f"Exported: {_time(now)}",
        f"Turns: {snapshot.transcript.count:,}",
        f"Tokens: {usage.tokens:,}{cost}",
    ]
    if snapshot.running_turn:
        facts.append("A turn was running, which is left out")
    return f"# {_plain(config.title or 'Untitled')}\n\n" + "".join(f"- {fact}\n" for fact in facts)


def markdown_turn(number: int, turn: ConversationMessage) -> str:
    """Return a turn with all its steps."""
    return "".join(f"\n{block}\n" for block in _blocks(number, turn))


def _blocks(number: int, turn: ConversationMessage) -> Iterator[str]:
    yield f"## Turn {number:,}"
    yield f"{_speaker(MessageRole.USER)}, {_time(turn.user_timestamp)}"
    yield from _prompt_blocks(turn.user_message, turn.attachments)
    for step in turn.steps:
        if isinstance(step, ModelStep):
            yield from _step_blocks(step)
        else:
            yield f"{_speaker(MessageRole.USER)}, added at {_time(step.timestamp)}"
            yield from _prompt_blocks(step.content, step.attachments)
    ended = f", {_time(turn.agent_timestamp)}" if turn.agent_timestamp else ""
    if turn.agent_message is not None:
        yield f"{_speaker(MessageRole.AGENT)}{ended}"
        yield _quote(turn.agent_message)
    if turn.error is not None:
        yield f"**Error**{ended} ({_plain(turn.error_type or 'error')})"
        yield _quote(turn.error)


def _step_blocks(step: ModelStep) -> Iterator[str]:
    if step.left_out:
        yield f"*{_plain(step.left_out)}*"
    if step.thinking:
        yield "**Thinking**"
        yield _quote(step.thinking)
    if step.text and (step.tool_calls or step.interrupted):  # otherwise it is the turn's answer
        yield f"{_speaker(MessageRole.AGENT)}{', interrupted' if step.interrupted else ''}"
        yield _quote(step.text)
    for call in step.tool_calls:
        yield from _call_blocks(call)


def _call_blocks(call: ToolCall) -> Iterator[str]:
    yield f"**Tool call** {_code(call.name)}"
    yield _fence(call.args if isinstance(call.args, str) else to_json(call.args, indent=2).decode(), "json")
    if call.result is None:
        return
    status = "" if call.result.status == "ok" else f" ({_plain(call.result.status)})"
    yield f"**Result**{status}: {_plain(call.result.outcome)}"
    if call.result.content:
        yield _fence(call.result.content, "text")
    yield from _attachment_blocks(call.result.attachments)


def _prompt_blocks(text: str, attachments: Iterable[Attachment]) -> Iterator[str]:
    if text:
        yield _quote(text)
    yield from _attachment_blocks(attachments)


def _attachment_blocks(attachments: Iterable[Attachment]) -> Iterator[str]:
    lines = [f"- {_plain(placeholder_text(attachment))}" for attachment in attachments]
    if lines:
        yield "\n".join(lines)


def _quote(text: str) -> str:
    r"""Return the text as a quote, whose Markdown stays inside; HTML is shown as it is written.

    >>> _quote("# A <b>\n```\n<b>\n```")
    '> # A &lt;b>\n> ```\n> <b>\n> ```'
    """
    lines, fence, is_clear = list[str](), "", True
    for line in _LINE_ENDS.split(text):
        lines.append(line if fence else _TAG.sub("&lt;", line))
        if fence:
            if re.fullmatch(rf"\s*{fence}{fence[0]}*\s*", line):
                fence, is_clear = "", not line.strip("`~")
        elif is_clear and (opening := _FENCE.match(line)):
            fence = opening[1]
        elif "```" in line or "~~~" in line:
            is_clear = False  # it may open a fence, so that the next line in the form of one would end it
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _fence(text: str, language: str) -> str:
    r"""Return the text in a fence that is longer than any in it.

    >>> _fence("```", "text")
    '````text\n```\n````'
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{ticks}{pad}{' '.join(text.split())}{pad}{ticks}"


def _plain(text: str) -> str:
    r"""Return the text in one line, without meaning in Markdown.

    >>> print(_plain("# *A* <b>"))
    \# \*A\* \<b\>
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _speaker(role: MessageRole) -> str:
    return f"**{role.capitalize()}**"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


TEXTS_AT_ONCE = 20


class SessionExporter:
    """Exports sessions as of their last completed turn, also those that Temporal no longer has."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def snapshot(self, workflow_id: WorkflowId) -> SessionSnapshot:
        """Return what a copy is made of. Raises `ProblemError`.

        A session that Temporal no longer has is given the settings of new sessions, apart from what the index knows.
        """
        read = await self._services.reader.ask(
            workflow_id,
            "internal_feature_query",
            SNAPSHOT,
            SessionSnapshot,
            # Temporal has forgotten the session: nobody knows what its model saw.
            lambda session: snapshot_of(session).model_copy(update={"context": None}),
        )
        snapshot = read.view
        if snapshot.context is not None:
            return snapshot
        config = SessionInput(
            title=snapshot.config.title,
            user=snapshot.config.user,
            model=snapshot.config.model,
            system_prompt=self._services.settings.system_prompt,
            limits=self._services.settings.limits,
            history=self._services.settings.history,
        )
        return snapshot.model_copy(update={"config": config})

    async def document(self, workflow_id: WorkflowId) -> AsyncIterator[bytes]:
        """Return the parts of the JSON document. Raises `ProblemError`, or `StoreUnavailableError`."""
        snapshot = await self.snapshot(workflow_id)
        return await _with_first_part(self._document(workflow_id, snapshot))

    async def markdown(self, workflow_id: WorkflowId) -> AsyncIterator[bytes]:
        """Return the parts of the Markdown text. Raises `ProblemError`, or `StoreUnavailableError`."""
        snapshot = await self.snapshot(workflow_id)
        return await _with_first_part(self._markdown(workflow_id, snapshot))

    async def _document(self, workflow_id: WorkflowId, snapshot: SessionSnapshot) -> AsyncIterator[bytes]:
        contents = StoredContents()
        if snapshot.context:
            contents.add_view(snapshot.context)
        # The first page of turns is read before anything is sent, so that most errors are answers.
        opening, is_first = to_json(_head(workflow_id, snapshot))[:-1] + b',"turns":[', True
        async for page in whole_turns(self._services.stores.archive, workflow_id, snapshot.transcript):
            for exported in page:
                contents.add_turn(exported.turn)
                yield (opening if is_first else b",") + to_json(_turn(exported))
                is_first = False
        if is_first:
            yield opening
        missing: list[str] = []
        yield b'],"texts":{'
        async for part in self._texts(workflow_id, contents.texts, missing):
            yield part
        yield b'},"attachments":{'
        async for part in self._attachments(workflow_id, contents.attachments, missing):
            yield part
        yield b'},"missing":' + to_json(missing) + b"}\n"

    async def _texts(self, workflow_id: WorkflowId, hashes: set[str], missing: list[str]) -> AsyncIterator[bytes]:
        separator = b""
        names = iter(sorted(hashes))
        while some := list(islice(names, TEXTS_AT_ONCE)):
            reading = self._services.stores.blobs.get(workflow_id, some)
            stored = await read_store(reading, until=seconds_from_now(self._services.timeouts.request))
            missing += [name for name in some if name not in stored]
            for name, text in stored.items():
                yield separator + to_json(name) + b":" + to_json(text)
                separator = b","

    async def _attachments(self, workflow_id: WorkflowId, hashes: set[str], missing: list[str]) -> AsyncIterator[bytes]:
        separator = b""
        for name in sorted(hashes):
            reading = self._services.stores.blobs.get_data(attachments_owner(workflow_id), [name])
            stored = await read_store(reading, until=seconds_from_now(self._services.timeouts.request))
            if name not in stored:
                missing.append(name)
                continue
            yield separator + to_json(name) + b':"' + b64encode(stored[name]) + b'"'
            separator = b","

    async def _markdown(self, workflow_id: WorkflowId, snapshot: SessionSnapshot) -> AsyncIterator[bytes]:
        opening = markdown_head(session_id_of(workflow_id), snapshot, now=datetime.now(UTC))
        async for page in whole_turns(self._services.stores.archive, workflow_id, snapshot.transcript):
            for exported in page:
                hashes = {ref.hash for ref in refs_in(exported.turn)}
                reading = self._services.stores.blobs.get(workflow_id, hashes)
                texts = await read_store(reading, until=seconds_from_now(self._services.timeouts.request))
                turn = resolve_turn(exported.turn, texts)
                yield (opening + markdown_turn(exported.number, turn)).encode()
                opening = ""
        if opening:
            yield opening.encode()


async def _with_first_part(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the same parts; the first one has been read."""
    first = await anext(parts)

    async def all_parts() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return all_parts()


def _head(workflow_id: WorkflowId, snapshot: SessionSnapshot) -> dict[str, Any]:
    config = snapshot.config.model_dump(mode="json", include=set(ExportedConfiguration.model_fields))
    context = snapshot.context
    return {
        "format": FORMAT,
        "version": VERSION,
        "exported_at": datetime.now(UTC),
        "turnkeeper": version("turnkeeper"),
        "session": {
            "id": session_id_of(workflow_id),
            "created_at": snapshot.facts.created_at,
            "turn_count": snapshot.transcript.count,
            "usage": snapshot.facts.usage.model_dump(mode="json"),
            "running_turn": snapshot.running_turn,
            "waiting_prompts": snapshot.waiting_prompts,
            "configuration": config,
        },
        "context": context
        and {"archived_turns": snapshot.transcript.archived, "state": context.model_dump(mode="json")},
    }


def _turn(exported: ExportedTurn) -> dict[str, Any]:
    archived = {"archived_steps": exported.archived_steps} if exported.archived_steps else {}
    return {"number": exported.number, **archived, "turn": exported.turn.without_defaults()}
