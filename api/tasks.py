"""The verbs of tasks: what a task needs from elsewhere is fetched here, what follows from it is decided in `models`."""

from datetime import UTC, datetime

from api.sessions import Sessions
from api.transcript import Transcripts
from models.context.inheritance import spoken_messages
from models.task import CreateTask, PreparedTask, prepare_task

MOST_PAGES = 4
"""About 4 MB of transcript are read to inherit from: a conversation of few words in long turns is taken in part."""


class Tasks:
    """All tasks. Methods raise `ProblemError` and `TaskValidationError`."""

    def __init__(self, sessions: Sessions, transcripts: Transcripts) -> None:
        """Know parents by `sessions`, and what was said in them by `transcripts`."""
        self._sessions = sessions
        self._transcripts = transcripts

    async def prepare(self, task: CreateTask) -> PreparedTask:
        """Put together what a task's agent is told; nothing is started."""
        parent = task.parent_to_inherit_from
        inherited = await self._newest_messages(parent, most=task.history_policy.max_messages) if parent else None
        prepared = prepare_task(task, now=datetime.now(UTC), inherited=inherited)
        if task.parent and not parent:
            await self._sessions.describe(task.parent)
        return prepared

    async def _newest_messages(self, session_id: str, *, most: int) -> list[dict[str, str]]:
        """Return at least the `most` newest messages of a session, as far as there are so many, oldest first."""
        messages, before = list[dict[str, str]](), None
        for _ in range(MOST_PAGES):
            page = await self._transcripts.page(session_id, before=before, limit=most)
            messages = [*spoken_messages(page.messages), *messages]
            if len(messages) >= most or not page.has_more:
                break
            before = page.messages[0].id
        return messages
