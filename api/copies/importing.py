"""Imports: a session from an exported document (SES-18).

Nothing of a document is trusted: its id is ignored, its configuration must be one that the caller may set, and all of
it is checked before the first row is written.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import IO

from pydantic import ValidationError

from turnkeeper.api.auth.roles import require_for_copy
from turnkeeper.api.bodies import StartSession
from turnkeeper.api.callers import Caller
from turnkeeper.api.copies.copying import SessionCopies
from turnkeeper.api.http.body_limits import MAX_HISTORY_BYTES
from turnkeeper.api.problems import invalid, problem
from turnkeeper.api.session_links import requested_input
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.session.copies.copied_state import Copy, copy_with_new_view, max_session_bytes, start_of_copy
from turnkeeper.models.session.copies.copied_turns import CopiedTurns, session_form
from turnkeeper.models.session.copies.document import ExportedTurn, SessionDocument
from turnkeeper.models.session.copies.reading import check_document, read_document
from turnkeeper.models.session.copies.snapshot import context_through
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.outside_start import check_outside_start
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.transcript import carried_size
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.copies.batches import batches
from turnkeeper.stores.stores import Stores

WRITTEN_BYTES = 1_000_000
"""About as much is written in one transaction, which must stay short for every session."""

STEPS_AT_ONCE = 200

MAX_IMPORTS = 1
"""Documents that a gateway has in memory at once; more requests wait, with theirs in files."""

BYTES_PER_VALUE = 64
"""A document may have a JSON value for as many of the bytes that it may have: small values take far more memory than
text. Those of real sessions have one for some hundred bytes."""

PATIENCE_SECONDS = 10.0
"""How long a request waits for earlier ones."""

_IN_THE_DOCUMENT = (
    ("carried.transcript.turns", "turns"),
    ("carried.context", "context.state"),
    ("carried", "turns"),
    ("", "session.configuration."),
)
"""How the fields of a session's start begin, and what they are made of. The first match counts."""


class SessionImporter:
    """Starts sessions from documents."""

    def __init__(self, settings: Settings, copies: SessionCopies, stores: Stores) -> None:
        self._settings = settings
        self._copies = copies
        self._stores = stores
        self._slots = asyncio.Semaphore(MAX_IMPORTS)

    async def run(self, caller: Caller, workflow_id: WorkflowId, parts: AsyncIterator[bytes]) -> int:
        """Start the session from a document and return its number of turns.

        Raises 422 naming what is wrong in the document, 409 if the id was used, 429 while others are imported.
        """
        with SpooledTemporaryFile(max_size=MAX_HISTORY_BYTES) as file:
            async for part in parts:
                file.write(part)
            async with self._slot():
                # In a thread: a large document takes seconds.
                prepare = partial(_prepare, file, caller, workflow_id, self._settings)
                document, copy, start, source = await asyncio.to_thread(prepare)
                if await self._copies.begin(workflow_id, source):
                    await self._write(workflow_id, document, copy)
                    await self._copies.start(workflow_id, start, source)
                return len(document.turns)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            detail = "Other documents are being imported. Try again in a moment."
            raise problem("rate-limited", detail, retry_after=5) from None
        try:
            yield
        finally:
            self._slots.release()

    async def _write(self, workflow_id: WorkflowId, document: SessionDocument, copy: Copy) -> None:
        """Write texts first: turns refer to them. Every write adds what is missing."""
        blobs, archive = self._stores.blobs, self._stores.archive
        texts = [*document.texts.values(), *copy.texts]
        for some in batches(texts, map(len, texts), max_size=WRITTEN_BYTES):
            await blobs.put(workflow_id, some)
        for encoded in document.attachments.values():
            await blobs.put_data(attachments_owner(workflow_id), [b64decode(encoded)])
        archived = document.turns[: len(document.turns) - len(copy.turns)]
        for exported in document.turns:
            await self._write_early_steps(workflow_id, exported)
        rows = [ArchivedTurn(number=one.number, turn=session_form(one)) for one in archived]
        for part in batches(rows, (carried_size(row.turn) for row in rows), max_size=WRITTEN_BYTES):
            await archive.put_turns(workflow_id, part)

    async def _write_early_steps(self, workflow_id: WorkflowId, exported: ExportedTurn) -> None:
        steps = exported.turn.steps[: exported.archived_steps]
        for first in range(0, len(steps), STEPS_AT_ONCE):
            part = steps[first : first + STEPS_AT_ONCE]
            await self._stores.archive.put_steps(workflow_id, exported.number, first, part)


def _prepare(
    file: IO[bytes], caller: Caller, workflow_id: WorkflowId, settings: Settings
) -> tuple[SessionDocument, Copy, SessionInput, str]:
    """Return the checked document, what the session begins with, its start, and the document's hash.

    Raises 403 and 422.
    """
    file.seek(0)
    body = file.read()
    document = read_document(body, max_values=settings.api_max_import_bytes // BYTES_PER_VALUE)
    check_document(document)
    config = _configuration(document, caller, workflow_id, settings)
    copied = CopiedTurns(config.history, max_bytes=max_session_bytes(config.limits))
    for exported in document.turns:
        copied.add(exported)
    copy = _copy_of(document, config, copied)
    start = start_of_copy(config, copied, copy, now=datetime.now(UTC))
    with _field_names_of_the_document():
        check_outside_start(start, now=datetime.now(UTC))
    return document, copy, start, sha256(body).hexdigest()


def _copy_of(document: SessionDocument, config: SessionInput, copied: CopiedTurns) -> Copy:
    if document.context is None:
        return copy_with_new_view(config, copied, turns=copied.newest_turns())
    turns = [session_form(exported) for exported in document.turns[document.context.archived_turns :]]
    return Copy(turns, context_through(document.context.state, copied.count))


def _configuration(
    document: SessionDocument, caller: Caller, workflow_id: WorkflowId, settings: Settings
) -> SessionInput:
    """Return the configuration, checked as that of any new session. Raises 403 and 422."""
    configuration = document.session.configuration
    require_for_copy(caller, configuration, path="session.configuration.")
    try:
        options = StartSession.model_validate(configuration.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid(f"session.configuration.{field_path(first['loc'])}", reason_of(first)) from None
    with _field_names_of_the_document():
        return requested_input(options, settings, workflow_id, caller)


@contextmanager
def _field_names_of_the_document() -> Iterator[None]:
    """Name fields of the session's start as they are called in the document."""
    try:
        yield
    except RejectedError as error:
        field = error.field or ""
        if not field:
            raise
        before, after = next(names for names in _IN_THE_DOCUMENT if field.startswith(names[0]))
        name = after + field.removeprefix(before)
        raise RejectedError(error.reason, error.message.replace(field, name, 1), field=name) from None
