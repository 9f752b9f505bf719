"""Starting a session as a copy: its rows are written first, then its workflow is started (SES-18, docs/decisions/0054).

Theory of operation. A copy takes its id with a note of what it copies. While there is that note and no session, nobody
sees the copy's rows, and nobody else can have the id. All writes add what is missing. So a copy can be repeated with
the same id, also twice at once: Temporal starts one session, which has all rows, and every copy is answered the same.
Notes of copies that nobody repeats are removed an hour later, with their rows.
"""

from datetime import UTC, datetime, timedelta

from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import REQUEST_SECONDS, read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import find_first_run, find_running_deletion, id_is_being_deleted
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import call_temporal, rpc_timeout
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.stores.blobs import session_of
from turnkeeper.stores.stores import Stores

COPIED_FROM = "copied_from"
"""Key of the memo of a session that began as a copy: what it copies."""

MAX_COPY_AGE = timedelta(hours=1)
"""A copy takes seconds; an unfinished one that is older was given up."""

SWEPT_AT_ONCE = 3


class SessionCopies:
    """Starts sessions whose rows are written before. Methods raise `ProblemError` and `StoreUnavailableError`."""

    def __init__(
        self, reader: SessionReader, sessions: SessionCommands, transcripts: TranscriptReader, stores: Stores
    ) -> None:
        self._client = reader.client
        self._sessions = sessions
        self._transcripts = transcripts
        self._stores = stores

    async def begin(self, workflow_id: WorkflowId, source: str) -> bool:
        """Take the id for a copy of `source`, a SHA-256 in hex; return whether its rows are to be written.

        They are not if the same copy has started its session already. Raises 409.
        """
        await self.sweep()
        copies = self._stores.unfinished_copies
        earlier = await read_store(copies.find(workflow_id), until=seconds_from_now(REQUEST_SECONDS))
        if await find_running_deletion(self._client, workflow_id):
            raise id_is_being_deleted(workflow_id)
        if await find_first_run(self._client, workflow_id) is not None:
            if earlier is not None:  # of the copy that the session began as
                await copies.finish(workflow_id)
            if not await self._is_copy_of(workflow_id, source):
                raise problem("session-exists", workflow_id=workflow_id)
            return False
        if earlier is None:
            await self._raise_if_id_was_used(workflow_id, source)
        if await copies.begin(workflow_id, source, now=datetime.now(UTC)) != source:
            detail = (
                f"Another copy was begun under the id {session_id_of(workflow_id)!r} and not finished. Repeat it, "
                "delete the session, or choose another id."
            )
            raise problem("session-exists", detail)
        return True

    async def start(self, workflow_id: WorkflowId, start: SessionInput, source: str) -> None:
        """Start the session after its rows were written. Raises 409 if another one has taken the id meanwhile."""
        archived = start.carried.transcript.archived if start.carried else 0
        if await self._stores.archive.count(workflow_id) < archived:
            detail = "Turns of the copy were deleted while it was made. Send the request again."
            raise problem("archive-unavailable", detail)
        try:
            await self._sessions.start(workflow_id, start, memo={COPIED_FROM: source})
        except ProblemError as error:
            if error.problem.status != 409:
                raise
            if not await self._is_copy_of(workflow_id, source):
                # Its turns would be those of the other session, which may have texts under the id already.
                await self._stores.archive.delete(workflow_id)
                await self._stores.unfinished_copies.finish(workflow_id)
                raise
        await self._stores.unfinished_copies.finish(workflow_id)

    async def abandon(self, workflow_id: WorkflowId) -> None:
        """Remove the rows of a copy that must not start, unless the same copy has just started its session."""
        if await find_first_run(self._client, workflow_id) is None:
            await self._stores.delete(workflow_id)

    async def _raise_if_id_was_used(self, workflow_id: WorkflowId, source: str) -> None:
        try:
            await self._transcripts.raise_if_id_was_used(workflow_id)
        except ProblemError:
            if await self._stores.unfinished_copies.find(workflow_id) != source:  # begun by a repeat just now
                raise

    async def _is_copy_of(self, workflow_id: WorkflowId, source: str) -> bool:
        """Return whether the session began as a copy of `source`."""
        handle = self._client.get_workflow_handle(workflow_id)
        description = await call_temporal(handle.describe(rpc_timeout=rpc_timeout()), workflow_id)
        return (await description.memo()).get(COPIED_FROM) == source

    async def sweep(self) -> None:
        """Remove what is left of copies that were broken off and not repeated, and of starts with attachments."""
        copies, now = self._stores.unfinished_copies, datetime.now(UTC)
        for owner in await copies.claim(now - MAX_COPY_AGE, now=now, limit=SWEPT_AT_ONCE):
            workflow_id = session_of(owner)
            is_needed = await find_first_run(self._client, workflow_id) is not None
            # A session that Temporal has forgotten has its row of the index.
            is_needed = is_needed or await self._stores.index.find(workflow_id) is not None
            if owner == workflow_id and not is_needed:
                await self._stores.delete(workflow_id)
                continue
            if not is_needed and await copies.find(workflow_id) is None:
                await self._stores.blobs.delete_data(owner)
            await copies.finish(owner)
