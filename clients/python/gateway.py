"""A typed Python client of the gateway, with a method for every operation of a session.

    async with GatewayClient("http://127.0.0.1:8080") as gateway:
        session = await gateway.start(title="First steps")
        await gateway.prompt(session.workflow_id, "what time is it?")
        copy = Conversation()
        async for event in gateway.events(session.workflow_id):
            if isinstance(event, UpdateEvent):
                copy.apply(event.update)

Every prompt is sent with an id, so that it can be sent again after a lost response and still becomes one turn.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx2
from pydantic import RootModel

from turnkeeper.clients.python.conversation import Cursor, Event, follow
from turnkeeper.clients.python.request_sender import (
    TIMEOUT,
    CopyFailedError,
    GatewayProblemError,
    Problem,
    RequestSender,
    parse_address,
    without_none,
)
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.http_responses import (
    Action,
    Agent,
    AgentList,
    AgentVersionList,
    ApprovalDecided,
    AuditPage,
    Cancelling,
    ContextView,
    ConversationResponse,
    CopyReceipt,
    DeletionReceipt,
    FullConversation,
    Health,
    Me,
    PromptAccepted,
    PromptFate,
    SessionDescription,
    SessionList,
    SessionStarted,
    Task,
    TaskPage,
    TaskReceipt,
)
from turnkeeper.models.session.approvals import Decision, PendingApprovals
from turnkeeper.models.session.prompts import PromptMode, QueueView
from turnkeeper.models.transcript.attachments import Attachment, FileAttachment, ImageAttachment
from turnkeeper.models.transcript.conversation import (
    ApprovalDecision,
    ConversationMessage,
    ConversationUpdate,
    TaskStatus,
)

if TYPE_CHECKING:
    from turnkeeper.models.session.messages import SessionChanges


class TaskCalls:
    """The verbs of tasks. Every method raises `GatewayError`s."""

    def __init__(self, sender: RequestSender) -> None:
        self._sender = sender

    async def create(self, description: str, *, idempotency_key: str | None = None, **fields: Any) -> TaskReceipt:
        """Start a task; `fields` are those of `POST /tasks`.

        It has an `idempotency_key` in any case: sent again because its answer got lost, it is the same task.
        """
        key = idempotency_key or str(uuid4())
        body = without_none({"description": description, "idempotency_key": key, **fields})
        return await self._sender.ask(TaskReceipt, "POST", "/tasks", body=body)

    async def get(self, task_id: str, *, wait_seconds: float | None = None) -> Task:
        """Return a task; with `wait_seconds`, 60 at most, once it has ended or a person has to decide."""
        params = {"wait_seconds": wait_seconds}
        return await self._sender.ask(Task, "GET", _task_path(task_id), params=params, wait=wait_seconds or 0.0)

    async def list(
        self,
        *,
        status: TaskStatus | None = None,
        parent: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return a page of tasks, newest first; it may be short, or empty, and still have a `next_cursor`."""
        params = {"status": status, "parent": parent, "limit": limit, "cursor": cursor}
        # The gateway reads each of them.
        return await self._sender.ask(TaskPage, "GET", "/tasks", params=params, wait=LIST_SECONDS)

    async def message(
        self, task_id: str, text: str, *, message_id: str | None = None, mode: PromptMode = "enqueue"
    ) -> PromptAccepted:
        """Send a task a further prompt, under an id that is made up where none is given."""
        body = {"text": text, "id": message_id or str(uuid4()), "mode": mode}
        return await self._sender.ask(PromptAccepted, "POST", _task_path(task_id, "/messages"), body=body)

    async def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        """Cancel a task and all tasks below it; one that has ended stays as it is."""
        return await self._sender.ask(
            Task, "POST", _task_path(task_id, "/cancel"), body=without_none({"reason": reason})
        )


LIST_SECONDS = 30.0
"""Seconds that a list may take beyond other calls."""


def _task_path(task_id: str, part: str = "") -> str:
    return f"/tasks/{quote(task_id, safe='')}{part}"


API_KEY_VARIABLE = "TURNKEEPER_API_KEY"

PATIENCE_SECONDS = 10.0
"""Longer than a restart of the gateway."""


EXPORT_SECONDS = 30.0
"""Without a part of an export; then the connection counts as lost."""

CONFIRM_SECONDS = 1.0
"""How long a worker has to say that it refuses a prompt."""

_REFUSALS = {"rejected": (422, "invalid"), "discarded": (409, "session-ended"), "withdrawn": (409, "not-waiting")}
"""The status and name of the problem, by fates of prompts that never run."""

IMPORT_SECONDS = 300.0
"""How much longer than usual an import may take."""

FIRST_COPY_PAUSE_SECONDS = 0.05
MAX_COPY_PAUSE_SECONDS = 1.0
"""Between two receipts of a copy."""


class GatewayClient:
    """A client of one gateway. Every method raises `GatewayError`."""

    def __init__(
        self,
        url: str,
        *,
        patience: float = PATIENCE_SECONDS,
        api_key: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`patience`: seconds during which a call without a response is sent again, if it is idempotent.

        `api_key`: a key or token, for a gateway that needs one; by default the variable `TURNKEEPER_API_KEY`.

        Raises:
            GatewayUnreachableError: `url` is not an http address.
        """
        self.url = url.rstrip("/")
        address = parse_address(url)
        self._http = httpx2.AsyncClient(
            base_url=address,
            headers=_authorization(api_key),
            timeout=TIMEOUT,
            transport=transport,
            trust_env=False,  # the environment's proxies are for external hosts, not for one's own service
            verify=address.scheme == "https",  # to read certificates takes as long as all else of a short command
        )
        self._sender = RequestSender(self._http, self.url, patience=patience)
        self.tasks = TaskCalls(self._sender)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    # ---- sessions

    async def start(self, session_id: str | None = None, **options: Any) -> SessionStarted:
        """Start a session; `options` are those of `POST /workflow`, such as `agent="weather"`.

        The status is 409 if the id was ever used.
        """
        return await self._sender.ask(
            SessionStarted, "POST", "/workflow", body=without_none({"id": session_id, **options}), repeatable=False
        )

    async def list_sessions(
        self, *, status: str | None = None, user: str | None = None, text: str | None = None, cursor: str | None = None
    ) -> SessionList:
        """Return a page of sessions, open ones first; `text` filters titles and ids."""
        params = {"status": status, "user": user, "q": text, "cursor": cursor}
        return await self._sender.ask(SessionList, "GET", "/workflow", params=params)

    async def describe(self, session_id: str) -> SessionDescription:
        """Return the session's settings, status and usage."""
        return await self._sender.ask(SessionDescription, "GET", _path(session_id))

    async def export(self, session_id: str, *, markdown: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the exported session: a JSON document, or with `markdown` a text for people."""
        params = {"format": "markdown" if markdown else "json"}
        path = _path(session_id, "export")
        async with self._sender.stream(path, params=params, headers={}, silence=EXPORT_SECONDS) as response:
            async for part in response.aiter_bytes():
                yield part

    async def import_session(self, document: bytes, session_id: str | None = None) -> CopyReceipt:
        """Import an exported document, and return once its session is there. The status is 409 if the id was ever used.

        Raises `CopyFailedError` if it can't be imported.
        """
        response = await self._sender.send(
            "POST",
            "/workflow/import",
            params={"id": session_id},
            content=document,
            media_type="application/json",
            repeatable=False,
            wait=IMPORT_SECONDS,
        )
        return await self._copied(self._sender.parse(CopyReceipt, response))

    async def fork(
        self, session_id: str, *, turn: int | str | None = None, new_id: str | None = None, title: str | None = None
    ) -> CopyReceipt:
        """Fork the session at `turn`, an id or a number from 1, by default the last one; return once the fork is there.

        Raises `CopyFailedError` if it can't be copied.
        """
        body = without_none({"turn": turn, "id": new_id, "title": title})
        path = _path(session_id, "fork")
        return await self._copied(await self._sender.ask(CopyReceipt, "POST", path, body=body, repeatable=False))

    async def copy_receipt(self, session_id: str) -> CopyReceipt:
        """Return the progress of the fork or import that the session is from."""
        return await self._sender.ask(CopyReceipt, "GET", _path(session_id, "copy"))

    async def _copied(self, receipt: CopyReceipt) -> CopyReceipt:
        pauses = growing_pauses(FIRST_COPY_PAUSE_SECONDS, MAX_COPY_PAUSE_SECONDS)
        while receipt.status == "running":
            await asyncio.sleep(next(pauses))
            receipt = await self.copy_receipt(receipt.workflow_id)
        if receipt.status == "failed":
            raise CopyFailedError(receipt.reason or "")
        return receipt

    async def configure(
        self, session_id: str, change: "SessionChanges | None" = None, *, agent: str | None = None
    ) -> None:
        """Change the session from its next turn on; with `agent`, such as `weather@2`, it is that version then."""
        fields = change.model_dump(mode="json", exclude_none=True) if change else {}
        await self._sender.send("PATCH", _path(session_id), body={**fields, **without_none({"agent": agent})})

    async def end(self, session_id: str, *, reason: str | None = None, discard_queue: bool = False) -> None:
        """End the session after its queued prompts, or discard them."""
        request = without_none({"reason": reason, "discard_queue": discard_queue})
        await self._sender.send("POST", _path(session_id, "end"), body=request)

    async def delete(self, session_id: str) -> DeletionReceipt:
        """Delete the session; call it again for the deletion's progress."""
        return await self._sender.ask(DeletionReceipt, "DELETE", _path(session_id))

    # ---- prompts

    async def prompt(
        self,
        session_id: str,
        message: str,
        *,
        message_id: str | None = None,
        mode: PromptMode = "enqueue",
        start: bool = False,
        attachments: Sequence[Attachment] = (),
    ) -> PromptAccepted:
        """Send a prompt, by default with a random id; it is safe once this returns.

        `start`: start the session if it does not exist. With `attachments` the message may be blank; see
        `read_attachment`.
        """
        body = {"message": message, "id": message_id or str(uuid4()), "mode": mode, **_attached(attachments)}
        params = {"start": start or None}
        return await self._sender.ask(PromptAccepted, "POST", _path(session_id, "prompt"), params=params, body=body)

    async def ask(
        self,
        session_id: str,
        message: str,
        *,
        wait: float,
        message_id: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> ConversationMessage | None:
        """Send a prompt and return its turn once that has ended; None if it is still running after `wait` seconds.

        `wait` is at most 60. The prompt is safe in either case: the same id again is the same turn.
        """
        body = {"message": message, "id": message_id or str(uuid4()), **_attached(attachments)}
        path = _path(session_id, "prompt")
        response = await self._sender.send("POST", path, params={"wait": wait}, body=body, wait=wait)
        if response.status_code == httpx2.codes.ACCEPTED:
            return None
        return self._sender.parse(ConversationMessage, response)

    async def agents(self) -> AgentList:
        """Return the newest version of every agent."""
        return await self._sender.ask(AgentList, "GET", "/agents")

    async def agent(self, label: str) -> Agent:
        """Return a version of an agent, as in `weather@2`, or its newest one. The status is 404 if there is none."""
        return await self._sender.ask(Agent, "GET", f"/agents/{quote(label, safe='@')}")

    async def agent_versions(self, name: str) -> AgentVersionList:
        """Return an agent's versions, the newest first. The status is 404 if there is none."""
        return await self._sender.ask(AgentVersionList, "GET", f"/agents/{quote(name, safe='')}/versions")

    async def define_agent(self, name: str, **data: Any) -> Agent:
        """Make a version of an agent without code; `data` is that of `PUT /agents/{name}`. Needs an admin's key."""
        return await self._sender.ask(Agent, "PUT", f"/agents/{quote(name, safe='')}", body=data)

    async def chat(
        self,
        message: str,
        *,
        session_id: str | None = None,
        user_name: str | None = None,
        agent: str | None = None,
        message_id: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> PromptAccepted:
        """Send a prompt to a session, or to a new one, by default with a random id.

        The same id again is the same prompt in the same session, even if the first call started that session. `agent`
        and `user_name` are used only if the call starts one.
        """
        message_id = message_id or str(uuid4())
        names = {"id": message_id, "workflow_id": session_id, "user_name": user_name, "agent": agent}
        body = {"message": message, **without_none(names), **_attached(attachments)}
        return await self._sender.ask(PromptAccepted, "POST", "/chat", body=body)

    async def upload(
        self, session_id: str, content: bytes, *, media_type: str, name: str | None = None
    ) -> ImageAttachment | FileAttachment:
        """Upload a file to the session; return the attachment for a prompt. Repeating it changes nothing."""
        response = await self._sender.send(
            "POST", _path(session_id, "attachments"), params={"name": name}, content=content, media_type=media_type
        )
        return self._sender.parse(_Uploaded, response).root

    async def attachment(self, session_id: str, content_hash: str) -> bytes:
        """Return the content of an attachment that has a `hash`."""
        return (await self._sender.send("GET", _path(session_id, "attachments", content_hash))).content

    async def queue(self, session_id: str) -> QueueView:
        """Return the queued prompts, and the fates of earlier ones."""
        return await self._sender.ask(QueueView, "GET", _path(session_id, "queue"))

    async def fate(self, session_id: str, message_id: str) -> PromptFate:
        """Return a prompt's fate, or that it is queued. The status is 404 if the session never had it."""
        return await self._sender.ask(PromptFate, "GET", _path(session_id, "queue", message_id))

    async def raise_if_refused(self, session_id: str, message_id: str) -> None:
        """Raise `GatewayProblemError` if a prompt that was sent will not run, with the reason.

        It returns after a second if no worker has said so: the prompt is safe.
        """
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                fate = await self.fate(session_id, message_id)
        except TimeoutError:
            return
        except GatewayProblemError as error:
            if error.is_temporary:
                return
            raise
        if refusal := _REFUSALS.get(fate.fate):
            status, name = refusal
            detail = fate.reason or f"The prompt was {fate.fate}."
            raise GatewayProblemError(
                Problem(type=f"urn:turnkeeper:problem:{name}", title="Prompt refused", status=status, detail=detail)
            )

    async def withdraw(self, session_id: str, message_id: str) -> None:
        """Remove a queued prompt. The status is 409 if it has started."""
        await self._sender.send("DELETE", _path(session_id, "queue", message_id), repeatable=False)

    async def cancel(self, session_id: str, *, message_id: str | None = None, reason: str | None = None) -> Cancelling:
        """Stop the turn `message_id`, by default the running one. With an id, a late call can't stop the next turn."""
        body = without_none({"message_id": message_id, "reason": reason})
        return await self._sender.ask(
            Cancelling, "POST", _path(session_id, "cancel"), body=body, repeatable=message_id is not None
        )

    async def retry(self, session_id: str, *, message_id: str | None = None) -> PromptAccepted:
        """Send the prompt of a failed turn again, by default of the last one. With an id, the call is idempotent."""
        body = without_none({"message_id": message_id})
        return await self._sender.ask(
            PromptAccepted, "POST", _path(session_id, "retry"), body=body, repeatable=message_id is not None
        )

    # ---- approvals

    async def approvals(self, session_id: str) -> PendingApprovals:
        """Return the tool calls that wait for a decision."""
        return await self._sender.ask(PendingApprovals, "GET", _path(session_id, "approvals"))

    async def decide(
        self,
        session_id: str,
        call_id: str,
        *,
        args_digest: str,
        decision: ApprovalDecision,
        reason: str | None = None,
    ) -> ApprovalDecided:
        """Decide on a call whose arguments have `args_digest`; the same decision again has no effect."""
        body = Decision(args_digest=args_digest, decision=decision, reason=reason)
        return await self._sender.ask(ApprovalDecided, "POST", _path(session_id, "approvals", call_id), body=body)

    # ---- reading

    async def updates(
        self, session_id: str, cursor: Cursor | None = None, *, limit: int | None = None, wait: float | None = None
    ) -> ConversationUpdate:
        """Return what is new since `cursor`; with `wait`, wait up to that many seconds for something."""
        params = {**(cursor or Cursor()).model_dump(), "limit": limit, "wait": wait}
        path = _path(session_id, "conversation")
        answer = await self._sender.ask(ConversationResponse, "GET", path, params=params, wait=wait or 0.0)
        return answer.conversation_update

    def events(
        self, session_id: str, cursor: Cursor | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield events since `cursor`, until the session is closed; see `follow`."""
        return follow(self._sender, _path(session_id, "events"), cursor or Cursor(), patience=patience)

    async def page(self, session_id: str, *, before: str | None = None, limit: int | None = None) -> FullConversation:
        """Return the newest page of the transcript, or the page before the turn `before`; oldest turn first."""
        params = {"before": before, "limit": limit}
        return await self._sender.ask(FullConversation, "GET", _path(session_id, "conversation/full"), params=params)

    async def transcript(self, session_id: str) -> AsyncGenerator[FullConversation, None]:
        """Yield all pages of the transcript, newest first."""
        page = await self.page(session_id)
        yield page
        while page.has_more and page.messages:
            page = await self.page(session_id, before=page.messages[0].id)
            yield page

    async def blob(self, session_id: str, blob_hash: str) -> str:
        """Return the full text of a blob that a turn refers to."""
        return (await self._sender.send("GET", _path(session_id, "blobs", blob_hash))).text

    async def context(self, session_id: str, *, before: int | None = None, limit: int | None = None) -> ContextView:
        """Return what the model sees of the newest turns, or of those before turn number `before`."""
        params = {"before": before, "limit": limit}
        return await self._sender.ask(ContextView, "GET", _path(session_id, "context"), params=params)

    async def replay_text(self, session_id: str, *, max_history: int | None = None) -> str:
        """Return the conversation as replay text."""
        params = {"format": "replay", "max_history": max_history}
        return (await self._sender.send("GET", _path(session_id, "context"), params=params)).text

    # ---- the gateway itself

    async def me(self) -> Me:
        """Return who the gateway takes the caller for; nobody without a valid key."""
        return await self._sender.ask(Me, "GET", "/me")

    async def audit(
        self,
        *,
        session_id: str | None = None,
        user: str | None = None,
        action: Action | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AuditPage:
        """Return a page of who changed what, newest first; only for admins."""
        params = {
            "session": session_id,
            "user": user,
            "action": action,
            "since": since.isoformat() if since else None,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._sender.ask(AuditPage, "GET", "/audit", params=params)

    async def health(self) -> Health:
        """Return whether the gateway's process is up. This is never sent again."""
        response = await self._sender.send("GET", "/healthz", patience=0.0)
        return self._sender.parse(Health, response)


class _Uploaded(RootModel[ImageAttachment | FileAttachment]):
    """The answer to an upload."""


def _attached(attachments: Sequence[Attachment]) -> dict[str, Any]:
    """Return the field of a body; none without attachments."""
    return {"attachments": [one.model_dump(mode="json") for one in attachments]} if attachments else {}


def _authorization(api_key: str | None) -> dict[str, str]:
    key = (api_key or os.environ.get(API_KEY_VARIABLE, "")).strip()
    return {"Authorization": f"Bearer {key}"} if key else {}


def _path(session_id: str, *parts: str) -> str:
    return "/".join(["/workflow", quote(session_id, safe=""), *(quote(part, safe="/") for part in parts)])
