"""The gateway from Python: every verb of a session as a typed call.

    async with GatewayClient("http://127.0.0.1:8080") as gateway:
        session = await gateway.start(title="First steps")
        await gateway.prompt(session.workflow_id, "what time is it?")
        copy = Conversation()
        async for event in gateway.events(session.workflow_id):
            if isinstance(event, UpdateEvent):
                copy.apply(event.update)

Every prompt is sent with an id of its own, so that one whose answer got lost is sent again and still is one turn.
"""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx2

from turnkeeper.clients.python.calls import TIMEOUT, Calls, checked_address, given
from turnkeeper.clients.python.conversation import Cursor
from turnkeeper.clients.python.events import Event, follow
from turnkeeper.clients.python.tasks import TaskCalls
from turnkeeper.models.answers import (
    ApprovalDecided,
    Cancelling,
    ChatAccepted,
    ConversationAnswer,
    DeletionReceipt,
    FullConversation,
    Health,
    PromptAccepted,
    PromptFate,
    SessionDescription,
    SessionList,
    SessionStarted,
)
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.session.approvals import Decision, PendingApprovals
from turnkeeper.models.session.queue.prompts import PromptMode, QueueView
from turnkeeper.models.session.session import Configure, EndSession
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.trajectory import ApprovalDecision

PATIENCE_SECONDS = 10.0
"""Longer than a gateway takes to be restarted."""


class GatewayClient:
    """The gateway at one address. Every method raises `GatewayError`s."""

    def __init__(
        self,
        url: str,
        *,
        patience: float = PATIENCE_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Speak to the gateway at `url`; `patience`: seconds in which a call that got no answer may be sent again.

        Raises `GatewayUnreachable` where `url` is no http address.
        """
        self.url = url.rstrip("/")
        # The environment's proxies are for the world outside, not for a service that is one's own.
        self._http = httpx2.AsyncClient(
            base_url=checked_address(url), timeout=TIMEOUT, transport=transport, trust_env=False
        )
        self._calls = Calls(self._http, self.url, patience=patience)
        self.tasks = TaskCalls(self._calls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    # ---- sessions

    async def start(self, session_id: str | None = None, **options: Any) -> SessionStarted:
        """Start a session; `options` are those of `POST /workflow`. 409 if the id was ever used."""
        return await self._calls.ask(
            SessionStarted, "POST", "/workflow", body=given({"id": session_id, **options}), repeatable=False
        )

    async def list_sessions(
        self, *, status: str | None = None, user: str | None = None, text: str | None = None, cursor: str | None = None
    ) -> SessionList:
        """Return a page of sessions, open ones first; `text` is looked for in titles and ids."""
        params = {"status": status, "user": user, "q": text, "cursor": cursor}
        return await self._calls.ask(SessionList, "GET", "/workflow", params=params)

    async def describe(self, session_id: str) -> SessionDescription:
        """Return what the session is and does."""
        return await self._calls.ask(SessionDescription, "GET", _path(session_id))

    async def configure(self, session_id: str, change: Configure) -> None:
        """Change the session from its next turn on."""
        await self._calls.send("PATCH", _path(session_id), body=change)

    async def end(self, session_id: str, *, reason: str | None = None, discard_queue: bool = False) -> None:
        """Have the session end after its queue, or without it."""
        wanted = EndSession(reason=reason, discard_queue=discard_queue)
        await self._calls.send("POST", _path(session_id, "end"), body=wanted)

    async def delete(self, session_id: str) -> DeletionReceipt:
        """Delete the session for good; asked again, it says how far that is."""
        return await self._calls.ask(DeletionReceipt, "DELETE", _path(session_id))

    # ---- prompts

    async def prompt(
        self,
        session_id: str,
        message: str,
        *,
        message_id: str | None = None,
        mode: PromptMode = "enqueue",
        start: bool = False,
    ) -> PromptAccepted:
        """Send a prompt, under an id that is made up where none is given; it is safe once this returns.

        `start`: the session is started if it does not exist.
        """
        body = {"message": message, "id": message_id or str(uuid4()), "mode": mode}
        params = {"start": start or None}
        return await self._calls.ask(PromptAccepted, "POST", _path(session_id, "prompt"), params=params, body=body)

    async def ask(
        self, session_id: str, message: str, *, wait: float, message_id: str | None = None
    ) -> ConversationMessage | None:
        """Send a prompt and return its turn once that has ended; `None` if it is still going after `wait` seconds.

        `wait` is 60 at most. The prompt is safe in either case: asked again with the same id, it is the same turn.
        """
        body = {"message": message, "id": message_id or str(uuid4())}
        path = _path(session_id, "prompt")
        response = await self._calls.send("POST", path, params={"wait": wait}, body=body, wait=wait)
        if response.status_code == httpx2.codes.ACCEPTED:
            return None
        return self._calls.read(ConversationMessage, response)

    async def chat(
        self,
        message: str,
        *,
        session_id: str | None = None,
        user_name: str | None = None,
        message_id: str | None = None,
    ) -> ChatAccepted:
        """Start a session or continue one, in one call, under an id that is made up where none is given.

        With the same id it is the same prompt, in the same session, also where the first call started that.
        """
        message_id = message_id or str(uuid4())
        body = given({"message": message, "id": message_id, "workflow_id": session_id, "user_name": user_name})
        return await self._calls.ask(ChatAccepted, "POST", "/chat", body=body)

    async def queue(self, session_id: str) -> QueueView:
        """Return what waits, and what became of the rest."""
        return await self._calls.ask(QueueView, "GET", _path(session_id, "queue"))

    async def fate(self, session_id: str, message_id: str) -> PromptFate:
        """Return what became of a prompt, or that it waits; 404 where the session never had it."""
        return await self._calls.ask(PromptFate, "GET", _path(session_id, "queue", message_id))

    async def withdraw(self, session_id: str, message_id: str) -> None:
        """Take a waiting prompt back; 409 if it has started."""
        await self._calls.send("DELETE", _path(session_id, "queue", message_id), repeatable=False)

    async def cancel(self, session_id: str, *, message_id: str | None = None, reason: str | None = None) -> Cancelling:
        """Stop the turn `message_id`, or the one that is running: naming it keeps a late stop from hitting the next."""
        body = given({"message_id": message_id, "reason": reason})
        return await self._calls.ask(
            Cancelling, "POST", _path(session_id, "cancel"), body=body, repeatable=message_id is not None
        )

    async def retry(self, session_id: str, *, message_id: str | None = None) -> PromptAccepted:
        """Send the prompt of a failed turn again, of the last one if none is named; twice is once where one is."""
        body = given({"message_id": message_id})
        return await self._calls.ask(
            PromptAccepted, "POST", _path(session_id, "retry"), body=body, repeatable=message_id is not None
        )

    # ---- approvals

    async def approvals(self, session_id: str) -> PendingApprovals:
        """Return the calls that wait for a decision."""
        return await self._calls.ask(PendingApprovals, "GET", _path(session_id, "approvals"))

    async def decide(
        self,
        session_id: str,
        call_id: str,
        *,
        args_digest: str,
        decision: ApprovalDecision,
        reason: str | None = None,
    ) -> ApprovalDecided:
        """Decide on a call as it was shown; the same decision twice is one."""
        body = Decision(args_digest=args_digest, decision=decision, reason=reason)
        return await self._calls.ask(ApprovalDecided, "POST", _path(session_id, "approvals", call_id), body=body)

    # ---- reading

    async def updates(
        self, session_id: str, cursor: Cursor | None = None, *, limit: int | None = None, wait: float | None = None
    ) -> ConversationUpdate:
        """Return what is new since `cursor`; with `wait`, as soon as there is something, or after that many seconds."""
        params = {**(cursor or Cursor()).model_dump(), "limit": limit, "wait": wait}
        path = _path(session_id, "conversation")
        answer = await self._calls.ask(ConversationAnswer, "GET", path, params=params, wait=wait or 0.0)
        return answer.conversation_update

    def events(
        self, session_id: str, cursor: Cursor | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield what is new since `cursor`, then whatever is new, until the session is closed; see `follow`."""
        return follow(self._calls, _path(session_id, "events"), cursor or Cursor(), patience=patience)

    async def page(self, session_id: str, *, before: str | None = None, limit: int | None = None) -> FullConversation:
        """Return the newest page of the whole transcript, or the one before the turn `before`; oldest first."""
        params = {"before": before, "limit": limit}
        return await self._calls.ask(FullConversation, "GET", _path(session_id, "conversation/full"), params=params)

    async def transcript(self, session_id: str) -> AsyncGenerator[FullConversation, None]:
        """Yield the pages of the whole transcript, the newest first."""
        page = await self.page(session_id)
        yield page
        while page.has_more and page.messages:
            page = await self.page(session_id, before=page.messages[0].id)
            yield page

    async def blob(self, session_id: str, blob_hash: str) -> str:
        """Return in full a text that a turn only refers to."""
        return (await self._calls.send("GET", _path(session_id, "blobs", blob_hash))).text

    async def context(self, session_id: str, *, before: int | None = None, limit: int | None = None) -> ContextView:
        """Return what the model sees of each turn: the newest ones, or those before turn number `before`."""
        params = {"before": before, "limit": limit}
        return await self._calls.ask(ContextView, "GET", _path(session_id, "context"), params=params)

    async def replay_text(self, session_id: str, *, max_history: int | None = None) -> str:
        """Return the conversation as text, for the next model or for a person."""
        params = {"format": "replay", "max_history": max_history}
        return (await self._calls.send("GET", _path(session_id, "context"), params=params)).text

    # ---- the gateway itself

    async def health(self) -> Health:
        """Return at once: the gateway's process is up. It is asked once, whatever the client's patience."""
        response = await self._calls.send("GET", "/healthz", patience=0.0)
        return self._calls.read(Health, response)


def _path(session_id: str, *parts: str) -> str:
    return "/".join(["/workflow", quote(session_id, safe=""), *(quote(part, safe="/") for part in parts)])
