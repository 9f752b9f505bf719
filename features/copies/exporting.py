"""Exports: a session as one JSON document, or as Markdown for people (SES-18).

One query gives the configuration, the newest turns and the model's context, all of the same moment; the archive has the
turns before, which never change. So the document is written as it is sent, and the gateway has a small part of it in
memory. If the archive fails in the middle, the connection ends in the middle of the JSON.
"""

from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Any

from pydantic_core import to_json

from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.features.copies.document.copied import SessionSnapshot, StoredContents, snapshot_of
from turnkeeper.features.copies.document.document import FORMAT, VERSION, ExportedConfiguration, ExportedTurn
from turnkeeper.features.copies.document.markdown import markdown_head, markdown_turn
from turnkeeper.features.copies.document.order import SNAPSHOT
from turnkeeper.features.copies.whole_turns import whole_turns
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.large_texts import refs_in, resolve_turn
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.stores import Stores

TEXTS_AT_ONCE = 20


class SessionExporter:
    """Exports sessions as of their last completed turn, also those that Temporal no longer has."""

    def __init__(self, settings: Settings, reader: SessionReader, stores: Stores) -> None:
        self._settings = settings
        self._reader = reader
        self._stores = stores

    async def snapshot(self, workflow_id: WorkflowId) -> SessionSnapshot:
        """Return what a copy is made of. Raises `ProblemError`.

        A session that Temporal no longer has is given the settings of new sessions, apart from what the index knows.
        """
        query = "internal_feature_query"
        snapshot = (await self._reader.ask(workflow_id, query, SNAPSHOT, SessionSnapshot, _without_context)).view
        if snapshot.context is not None:
            return snapshot
        config = SessionInput(
            title=snapshot.config.title,
            user=snapshot.config.user,
            model=snapshot.config.model,
            system_prompt=self._settings.system_prompt,
            limits=self._settings.limits,
            history=self._settings.history,
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
        async for page in whole_turns(self._stores.archive, workflow_id, snapshot.transcript):
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
        for some in _batches(sorted(hashes), TEXTS_AT_ONCE):
            reading = self._stores.blobs.get(workflow_id, some)
            stored = await read_store(reading, until=seconds_from_now(self._reader.timeouts.request))
            missing += [name for name in some if name not in stored]
            for name, text in stored.items():
                yield separator + to_json(name) + b":" + to_json(text)
                separator = b","

    async def _attachments(self, workflow_id: WorkflowId, hashes: set[str], missing: list[str]) -> AsyncIterator[bytes]:
        separator = b""
        for name in sorted(hashes):
            reading = self._stores.blobs.get_data(attachments_owner(workflow_id), [name])
            stored = await read_store(reading, until=seconds_from_now(self._reader.timeouts.request))
            if name not in stored:
                missing.append(name)
                continue
            yield separator + to_json(name) + b':"' + b64encode(stored[name]) + b'"'
            separator = b","

    async def _markdown(self, workflow_id: WorkflowId, snapshot: SessionSnapshot) -> AsyncIterator[bytes]:
        opening = markdown_head(session_id_of(workflow_id), snapshot, now=datetime.now(UTC))
        async for page in whole_turns(self._stores.archive, workflow_id, snapshot.transcript):
            for exported in page:
                hashes = {ref.hash for ref in refs_in(exported.turn)}
                reading = self._stores.blobs.get(workflow_id, hashes)
                texts = await read_store(reading, until=seconds_from_now(self._reader.timeouts.request))
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


def _without_context(session: Session) -> SessionSnapshot:
    """Return what a copy is made of that Temporal has forgotten; nobody knows what its model saw."""
    return snapshot_of(session).model_copy(update={"context": None})


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


def _batches(names: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(names)
    while some := list(islice(remaining, size)):
        yield some
