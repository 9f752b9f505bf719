"""Forks: a new session with the turns of another up to one of them (SES-18).

The original is only read, by one query and in the archive, so nothing is added to its history.
"""

from datetime import UTC, datetime
from hashlib import sha256

from pydantic_core import to_json

from turnkeeper.api.auth.roles import require_for_copy
from turnkeeper.api.callers import Caller
from turnkeeper.api.copies.copying import SessionCopies
from turnkeeper.api.copies.exporting import SessionExporter
from turnkeeper.api.copies.whole_turns import whole_turns
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.session_links import chat_url
from turnkeeper.api.store_calls import REQUEST_SECONDS, read_store, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.bounds import head_within
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.copies.copied_state import Copy, copy_of_first_turns, max_session_bytes, start_of_copy
from turnkeeper.models.session.copies.copied_turns import CopiedTurns, StoredContents, session_form
from turnkeeper.models.session.copies.document import ExportedTurn
from turnkeeper.models.session.copies.snapshot import SessionSnapshot
from turnkeeper.models.session.outside_start import check_outside_start
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.stores import Stores

TITLE_BYTES = 100
FORK_MARK = " (fork)"


TURN_IS_RUNNING = "has not ended yet"


class SessionForker:
    """Starts forks of sessions, also of those that have ended."""

    def __init__(
        self,
        settings: Settings,
        reader: SessionReader,
        exporter: SessionExporter,
        copies: SessionCopies,
        stores: Stores,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._exporter = exporter
        self._copies = copies
        self._stores = stores

    async def run(
        self, caller: Caller, source: WorkflowId, target: WorkflowId, *, turn: int | str | None, title: str | None
    ) -> tuple[int, str]:
        """Start the fork; return the number and the id of its last turn.

        `turn`: a number from 1, or an id; `None`: the last completed one. Raises 403, 404, 409 and 422.
        """
        snapshot = await self._exporter.snapshot(source)
        require_for_copy(caller, snapshot.config)
        count = await self._number_of(source, snapshot, turn)
        config = snapshot.config.model_copy(
            update={
                "title": title or _fork_title(snapshot.config.title),
                "user": caller.user or snapshot.config.user,
                "chat_url": chat_url(self._settings, target),
            }
        )
        copied, rows = CopiedTurns(config.history, max_bytes=max_session_bytes(config.limits)), _Rows()
        async for page in whole_turns(self._stores.archive, source, snapshot, last=count):
            for exported in page:
                copied.add(exported)
                rows.add(exported, is_archived=exported.number <= snapshot.transcript.archived)
        copy = copy_of_first_turns(snapshot, copied)
        rows.contents.add_view(copy.context)
        start = start_of_copy(config, copied, copy, now=datetime.now(UTC))
        check_outside_start(start, now=datetime.now(UTC))
        key = sha256(to_json(["fork", source, copied.ids[-1], count, title])).hexdigest()
        if await self._copies.begin(target, key):
            await self._write(source, target, rows, copy, archived=count - len(copy.turns))
            await self._raise_if_deleted_meanwhile(source, target)
            await self._copies.start(target, start, key)
        return count, copied.ids[-1]

    async def _raise_if_deleted_meanwhile(self, source: WorkflowId, target: WorkflowId) -> None:
        """Raise 404 if the original was deleted while its rows were copied; then nothing of it is left in the copy."""
        try:
            await self._reader.describe_if_retained(source)
        except ProblemError as problem:
            if problem.problem.status == 404:
                await self._copies.abandon(target)
            raise

    async def _write(self, source: WorkflowId, target: WorkflowId, rows: "_Rows", copy: Copy, *, archived: int) -> None:
        """Write texts first: turns refer to them. Every write adds what is missing.

        `archived`: how many turns the fork has in the archive.
        """
        copies, archive, contents = self._stores.row_copies, self._stores.archive, rows.contents
        await copies.copy_blobs(source, target, contents.texts)
        await copies.copy_blobs(attachments_owner(source), attachments_owner(target), contents.attachments)
        await self._stores.blobs.put(target, copy.texts)
        copied = min(archived, rows.archived)
        await copies.copy_turns(source, target, last=copied)
        added = [one for one in rows.unarchived if one.number <= archived]
        await archive.put_turns(target, [ArchivedTurn(number=one.number, turn=session_form(one)) for one in added])
        for number in rows.stepped:
            if number > copied:
                await copies.copy_steps(source, target, turn_number=number)

    async def _number_of(self, source: WorkflowId, snapshot: SessionSnapshot, turn: int | str | None) -> int:
        """Return the number of a completed turn. Raises 404 if the session has no such turn, 422 if it is running."""
        transcript = snapshot.transcript
        if turn is None:
            if not transcript.count:
                raise invalid("turn", "the session has no completed turn")
            return transcript.count
        if isinstance(turn, int):
            if turn == transcript.count + 1 and snapshot.running_turn:
                raise invalid("turn", TURN_IS_RUNNING)
            if turn > transcript.count:
                raise problem("unknown-turn", turn_id=str(turn))
            return turn
        if turn == snapshot.running_turn:
            raise invalid("turn", TURN_IS_RUNNING)
        for number, own in enumerate(transcript.turns, start=transcript.archived + 1):
            if own.id == turn:
                return number
        until = seconds_from_now(REQUEST_SECONDS)
        archived = await read_store(self._stores.archive.number_of(source, turn), until=until)
        if archived is None or archived > transcript.archived:
            raise problem("unknown-turn", turn_id=turn)
        return archived


class _Rows:
    """What the stores have of the turns that are copied, and the turns that only the original's session has."""

    def __init__(self) -> None:
        self.contents = StoredContents()
        self.archived = 0
        self.unarchived: list[ExportedTurn] = []
        self.stepped: list[int] = []
        """Numbers of the turns with archived steps."""

    def add(self, exported: ExportedTurn, *, is_archived: bool) -> None:
        """Add the next turn."""
        self.contents.add_turn(exported.turn)
        if is_archived:
            self.archived += 1
        else:
            self.unarchived.append(exported)
        if exported.archived_steps:
            self.stepped.append(exported.number)


def _fork_title(title: str | None) -> str | None:
    """Return the title of a fork; `None`: its first prompt gives it one."""
    return None if title is None else head_within(title.removesuffix(FORK_MARK), TITLE_BYTES) + FORK_MARK
