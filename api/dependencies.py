"""What routes are given: the verbs of sessions, and checks that hold for all of them.

All are `async`: FastAPI would run a plain function in a thread, and a request then waits for ten of them.
"""

from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from turnkeeper.api import problems
from turnkeeper.api.history.deletion import Deletions
from turnkeeper.api.history.replay import Replays
from turnkeeper.api.history.tasks import Tasks
from turnkeeper.api.history.transcript import Transcripts
from turnkeeper.api.live.feed import Feeds
from turnkeeper.api.live.shared_reads import SharedReads
from turnkeeper.api.markdown import Markdown
from turnkeeper.api.prompts.prompt_fates import PromptFates
from turnkeeper.api.prompts.prompt_sender import PromptSender
from turnkeeper.api.temporal.sessions import Sessions
from turnkeeper.models.ids import CALL_ID_PATTERN, ID_PATTERN
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores


async def get_sessions(request: Request) -> Sessions:
    """Return the verbs of sessions."""
    sessions: Sessions = request.app.state.sessions
    return sessions


async def get_sender(request: Request) -> PromptSender:
    """Return what sends prompts."""
    sender: PromptSender = request.app.state.sender
    return sender


async def get_fates(request: Request) -> PromptFates:
    """Return the fates of prompts."""
    fates: PromptFates = request.app.state.fates
    return fates


async def get_transcripts(request: Request) -> Transcripts:
    """Return the transcripts of sessions."""
    transcripts: Transcripts = request.app.state.transcripts
    return transcripts


async def get_reads(request: Request) -> SharedReads:
    """Return what many clients read together."""
    reads: SharedReads = request.app.state.reads
    return reads


async def get_feeds(request: Request) -> Feeds:
    """Return the live feeds of sessions."""
    feeds: Feeds = request.app.state.feeds
    return feeds


async def get_tasks(request: Request) -> Tasks:
    """Return the verbs of tasks."""
    tasks: Tasks = request.app.state.tasks
    return tasks


async def get_replays(request: Request) -> Replays:
    """Return the replay texts of sessions."""
    replays: Replays = request.app.state.replays
    return replays


async def get_stores(request: Request) -> Stores:
    """Return the archive and the store of large texts."""
    stores: Stores = request.app.state.stores
    return stores


async def get_deletions(request: Request) -> Deletions:
    """Return the deletions in progress."""
    deletions: Deletions = request.app.state.deletions
    return deletions


async def get_markdown(request: Request) -> Markdown:
    """Return the renderer of Markdown."""
    markdown: Markdown = request.app.state.markdown
    return markdown


async def get_settings(request: Request) -> Settings:
    """Return the gateway's settings."""
    settings: Settings = request.app.state.settings
    return settings


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a query parameter the route does not know: an option is never ignored (API-2)."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = {field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)}
    for name in request.query_params:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise problems.invalid(ascii(name)[1:61].rstrip("'"), f"is no parameter of this route; allowed: {allowed}")


async def refuse_deleted(request: Request) -> None:
    """Refuse to read a session that is being deleted: to who asks it is gone, though Temporal takes a while (API-1)."""
    session_id = request.path_params.get("id")
    if session_id is None or request.method != "GET" or not request.url.path.startswith("/workflow/"):
        return
    deletions = await get_deletions(request)
    if await deletions.has_taken(session_id):
        raise problems.unknown_session(session_id)


SessionsDep = Annotated[Sessions, Depends(get_sessions)]
SenderDep = Annotated[PromptSender, Depends(get_sender)]
FatesDep = Annotated[PromptFates, Depends(get_fates)]
TranscriptsDep = Annotated[Transcripts, Depends(get_transcripts)]
ReadsDep = Annotated[SharedReads, Depends(get_reads)]
FeedsDep = Annotated[Feeds, Depends(get_feeds)]
TasksDep = Annotated[Tasks, Depends(get_tasks)]
ReplaysDep = Annotated[Replays, Depends(get_replays)]
StoresDep = Annotated[Stores, Depends(get_stores)]
DeletionsDep = Annotated[Deletions, Depends(get_deletions)]
MarkdownDep = Annotated[Markdown, Depends(get_markdown)]
SettingsDep = Annotated[Settings, Depends(get_settings)]
SessionId = Annotated[str, Path(alias="id", pattern=ID_PATTERN, description="The session's id.")]
MessageId = Annotated[str, Path(pattern=ID_PATTERN, description="The prompt's id.")]
CallId = Annotated[str, Path(pattern=CALL_ID_PATTERN, description="The tool call's id: turn, step and index.")]
BlobHash = Annotated[str, Path(alias="hash", pattern=r"^[0-9a-f]{64}$", description="`hash` of a blob in a turn.")]
