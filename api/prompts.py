"""Prompts: their attachments are stored, they are signalled, and their fates are read (SES-6, CTX-16).

**Attachments.** A prompt in Temporal's history has references only. Its contents are stored first, by session and hash:
the same prompt sent again stores the same rows, and they are deleted with the session. If this gateway dies before the
prompt is signalled, or the session started, nobody refers to them, and nobody can read what is under an id without a
session.

**Sending** is one signal, which Temporal keeps. The session is not asked before it or after it: what became of a prompt
is read on the stream, or by its id.

**Fates.** The session has the queue and the last fates. What it has forgotten is in the archive: a turn as a turn, any
other fate by the prompt's id. A fate is archived before the session forgets it, so the session is queried first.
Without a worker the archive answers as far as it can. But an archived rejection counts only after the session has
answered: the id may have been sent again, and become a turn that is not archived yet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import Field
from temporalio.client import WorkflowExecutionStatus

from turnkeeper.api.history.transcript_reader import TextRestorer
from turnkeeper.api.http.streams import Closing
from turnkeeper.api.problems import UNKNOWN_UPLOAD, ProblemError, invalid, problem, rejected
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import raise_if_deleted, used_id_error
from turnkeeper.api.timeouts import Answer, read_store, seconds_from_now
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.http_responses import PromptFate
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.limits import LARGE_TEXT_BYTES, Limits
from turnkeeper.models.session.messages import SessionInput, UpdatesRequest
from turnkeeper.models.session.prompts import Fate, PromptSignal
from turnkeeper.models.transcript.attachments import (
    HASH_PATTERN,
    LANGUAGE_PATTERN,
    MAX_ATTACHMENT_BYTES,
    MAX_ATTACHMENTS,
    MAX_NAME_CHARS,
    MAX_URL_CHARS,
    MEDIA_TYPE_PATTERN,
    SIGNATURE_BYTES,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
    check_attachments,
    check_content,
    hashes_of,
    json_bytes,
    refer_attachments,
)
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.wire import Items, Strict
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores


@dataclass(frozen=True)
class PreparedAttachments:
    """The attachments of a prompt as the session gets them, and the contents to store before, by hash."""

    attachments: list[Attachment] = field(default_factory=list)
    contents: Mapping[str, bytes] = field(default_factory=dict)


NO_ATTACHMENTS = PreparedAttachments()


class AttachmentKeeper:
    """Checks and stores attachments of prompts. Methods raise `ProblemError`."""

    def __init__(
        self,
        reader: SessionReader,
        stores: Stores,
        *,
        inline_bytes: int = LARGE_TEXT_BYTES,
    ) -> None:
        """`inline_bytes`: what the attachments of a prompt may have as JSON, unless a session has limits of its own."""
        self._reader = reader
        self._blobs = stores.blobs
        self._inline_bytes = inline_bytes

    async def prepare(
        self,
        workflow_id: WorkflowId,
        attachments: Sequence[Attachment],
        *,
        name: str = "attachments",
        limits: Limits | None = None,
    ) -> PreparedAttachments:
        """Check attachments, and return them with large contents by reference. Nothing is stored yet.

        `limits` are those of the session, if they are known.
        Raises 422 naming the field below `name`, also for an unknown upload hash, and 503.
        """
        if not attachments:
            return NO_ATTACHMENTS
        await asyncio.to_thread(check_attachments, attachments, field=name)
        attachments = await self._with_uploads(workflow_id, attachments, name=name)
        inline_bytes = limits.attachments_bytes if limits else self._inline_bytes
        referred, contents = await asyncio.to_thread(refer_attachments, attachments, inline_bytes=inline_bytes)
        check_attachments(referred, field=name)  # their sizes together, with those of uploads
        if json_bytes(referred) > inline_bytes:
            reason = f"names and addresses are too long: without contents, {inline_bytes:,} bytes of JSON are allowed"
            raise invalid(name, reason)
        return PreparedAttachments(referred, contents)

    async def store(
        self, workflow_id: WorkflowId, contents: Mapping[str, bytes], *, is_started_next: bool = False
    ) -> None:
        """Store contents of a session, or of one that is started next; a repetition changes nothing.

        Raises 404 if the session does not exist, or was deleted meanwhile, and 503. Then nothing may be signalled.
        """
        if not contents:
            return
        owner = attachments_owner(workflow_id)
        if not is_started_next:
            await self._reader.describe_if_retained(workflow_id)
        await self._call(self._blobs.put_data(owner, contents.values()))
        if is_started_next:
            return
        try:
            await self._reader.describe_if_retained(workflow_id)
        except ProblemError as problem:
            if problem.problem.status == 404:  # its deletion may have passed before the contents were there
                await self._call(self._blobs.delete_some(owner, contents))
            raise

    async def _call(self, call: Awaitable[Answer]) -> Answer:
        """Return what a call of the store returns. Raises 503."""
        try:
            return await read_store(call, until=seconds_from_now(self._reader.timeouts.request))
        except StoreUnavailableError as error:
            detail = f"{error} The attachments can't be stored, so nothing was sent. Try again."
            raise problem("archive-unavailable", detail) from error

    async def _with_uploads(
        self, workflow_id: WorkflowId, attachments: Sequence[Attachment], *, name: str
    ) -> list[Attachment]:
        """Return the attachments with the sizes of those that were uploaded before, whose types are checked."""
        hashes, owner = hashes_of(attachments), attachments_owner(workflow_id)
        if not hashes:
            return [one.model_copy(update={"bytes": None}) for one in attachments]
        sizes = await self._call(self._blobs.read_sizes(owner, hashes))
        heads = await self._call(self._blobs.read_heads(owner, hashes, max_bytes=SIGNATURE_BYTES))
        for index, one in enumerate(attachments):
            if one.hash and (problem := _problem_of_upload(one, heads.get(one.hash))):
                path = f"{name}[{index}].{problem[0]}"
                raise RejectedError("invalid", f"{path}: {problem[1]}", field=path)
        return [one.model_copy(update={"bytes": sizes.get(one.hash or "")}) for one in attachments]


def _problem_of_upload(attachment: Attachment, head: bytes | None) -> tuple[str, str] | None:
    """Return the wrong field of an attachment whose content begins with `head`, and what is wrong with it."""
    if head is None:
        return "hash", UNKNOWN_UPLOAD
    media_type = None if isinstance(attachment, CodeAttachment) else attachment.media_type
    problem = check_content(head, media_type)
    return ("media_type", f"the content {problem}.") if problem else None


MAX_BASE64_CHARS = (MAX_ATTACHMENT_BYTES + 2) // 3 * 4

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, examples=["report.pdf"])]
Data = Annotated[str, Field(max_length=MAX_BASE64_CHARS, json_schema_extra={"contentEncoding": "base64"})]
Hash = Annotated[str, Field(pattern=HASH_PATTERN, description="Of a content that was uploaded to the session before.")]
Size = Annotated[int, Field(ge=1, le=MAX_ATTACHMENT_BYTES, description="As the upload answered; it need not be sent.")]


class _Uploaded(Strict):
    hash: Hash | None = None
    bytes: Size | None = None


class CodeBody(_Uploaded):
    """Source code: its `content`, or the `hash` of an upload."""

    type: Literal["code"]
    name: Name | None = None
    language: str = Field("", pattern=LANGUAGE_PATTERN)
    content: str = Field("", max_length=MAX_ATTACHMENT_BYTES)


class ImageBody(_Uploaded):
    """An image: its `data` in base64, the `hash` of an upload, or a public `url` that the model's vendor fetches."""

    type: Literal["image"]
    name: Name | None = None
    media_type: ImageMediaType | None = None
    data: Data = ""
    url: str | None = Field(None, max_length=MAX_URL_CHARS, examples=["https://example.org/cat.png"])


class FileBody(_Uploaded):
    """A file: its `data` in base64, or the `hash` of an upload."""

    type: Literal["file"]
    name: Name
    media_type: str = Field(pattern=MEDIA_TYPE_PATTERN, examples=["application/pdf"])
    data: Data = ""


AttachmentBody = Annotated[CodeBody | ImageBody | FileBody, Field(discriminator="type")]

AttachmentBodies = Annotated[
    Items[AttachmentBody],
    Field(
        max_length=MAX_ATTACHMENTS,
        examples=[[{"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}]],
    ),
]

_MODELS: dict[str, type[CodeAttachment | ImageAttachment | FileAttachment]] = {
    "code": CodeAttachment,
    "image": ImageAttachment,
    "file": FileAttachment,
}


def attachments_of(bodies: list[AttachmentBody]) -> list[Attachment]:
    """Return the attachments of a body. Their contents have not been checked.

    >>> attachments_of([CodeBody(type="code", content="x")])
    [CodeAttachment(hash=None, bytes=None, type='code', name=None, language='', content='x')]
    """
    return [_MODELS[body.type].model_validate(body.model_dump(exclude_none=True)) for body in bodies]


def attachment_path(workflow_id: WorkflowId, content_hash: str) -> str:
    """Return the path of a stored content.

    >>> attachment_path(WorkflowId("acme:s1"), "abc")
    '/workflow/s1/attachments/abc'
    """
    return f"/workflow/{session_id_of(workflow_id)}/attachments/{content_hash}"


NO_CONTENTS: Mapping[str, bytes] = MappingProxyType({})


NewSession = Callable[[], Awaitable[SessionInput]]
"""Returns what a session is started with, if it is not there yet."""


class PromptSender:
    """Sends prompts to sessions. Methods raise `ProblemError`."""

    def __init__(
        self, sessions: SessionCommands, reader: SessionReader, attachments: AttachmentKeeper, stores: Stores
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._attachments = attachments
        self._stores = stores

    async def send(
        self,
        workflow_id: WorkflowId,
        prompt: PromptSignal,
        *,
        start: NewSession | None = None,
        contents: Mapping[str, bytes] = NO_CONTENTS,
    ) -> str:
        """Store the `contents` of its attachments, by hash, and signal the prompt; return its id.

        If the id was never used, the session is started as `start` says. Sending a prompt again makes no second one:
        the session knows its id. Raises 404, 409 if the session has ended, 429 and 503.
        """
        await self._reader.admission.admit(workflow_id, prompt)
        new_session, unavailable = None, None
        if start is not None and not await self._was_used(workflow_id):
            try:
                new_session = await start()
            except StoreUnavailableError as error:
                unavailable = error  # of the session's agent; but Temporal may have the session
        try:
            await self._attachments.store(workflow_id, contents, is_started_next=new_session is not None)
            if new_session is not None:
                await self._sessions.start_or_prompt(workflow_id, new_session, prompt)
            else:
                await self._sessions.prompt(workflow_id, prompt)
        except ProblemError as error:
            if unavailable and error.problem.status == 404:
                raise unavailable from error
            if start is not None and error.problem.status == 404:
                raise await used_id_error(self._reader.client, workflow_id, self._reader.timeouts) from error
            raise
        return prompt.id or ""

    async def _was_used(self, workflow_id: WorkflowId) -> bool:
        """Return whether archive or index have a session with the id, which Temporal may no longer have."""
        try:
            until = seconds_from_now(self._reader.timeouts.restore)
            return await read_store(self._stores.has(workflow_id), until=until)
        except StoreUnavailableError:
            return False  # if Temporal still has the session, it rejects the id itself


def new_prompt(text: str, *, message_id: str | None, mode: Any, attachments: Sequence[Attachment] = ()) -> PromptSignal:
    return PromptSignal(
        id=message_id or str(uuid4()),
        text=text,
        attachments=list(attachments),
        mode=mode,
        sent_at=datetime.now(UTC),
    )


def retry_prompt(workflow_id: WorkflowId, turn: ConversationMessage) -> PromptSignal:
    """Return the signal that sends a turn's prompt again. It always has the same id, so repeating it has no effect.

    Its attachments are those of the turn: what is stored of them is there.
    """
    message_id = retry_prompt_id(workflow_id, turn.id)
    prompt = new_prompt(turn.user_message, message_id=message_id, mode="enqueue", attachments=turn.attachments)
    return prompt.model_copy(update={"retries": turn.id})


def retry_prompt_id(workflow_id: WorkflowId, turn_id: str) -> str:
    """Return the id of the prompt that retries a turn."""
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:retry:{workflow_id}:{turn_id}"))


def chat_session_id(message_id: str, *, user: str | None) -> str:
    """Return the id of the session that a prompt starts; the same prompt always gets the same session.

    It depends on the user too: two users may choose the same id, but must not share a session.
    """
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:chat:{message_id}:{user or ''}"))


QUEUE_CLOSED = "The session was closed before the prompt was processed."

RETRY_SECONDS = 1.0
"""Pause while waiting for a turn, after a query that nobody could answer."""


class FateReader:
    """Reads the fates of prompts, and waits for them. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, stores: Stores, texts: TextRestorer, closing: Closing) -> None:
        self._reader = reader
        self._stores = stores
        self._texts = texts
        self._closing = closing

    async def fate_of(self, workflow_id: WorkflowId, message_id: str) -> PromptFate:
        """Return the fate of a prompt; `waiting` while it has none.

        Raises 404 if there is no such prompt, 504 if only a worker has the answer and none is there, and
        `StoreUnavailableError` if only the archive has it.
        """
        silence: ProblemError | None = None
        try:
            if fate := await self._from_session(workflow_id, message_id):
                return fate
        except ProblemError as error:
            if error.problem.status not in (404, 503, 504):
                raise
            silence = error
        is_final = silence is None or silence.problem.status == 404
        if silence is not None and is_final:
            await raise_if_deleted(self._reader.client, workflow_id, self._reader.timeouts)
        try:
            # The prompt may have been archived meanwhile, or Temporal may no longer have the session.
            fate = await self._from_archive(workflow_id, message_id)
        except StoreUnavailableError:
            if silence is None or is_final:
                raise
            raise silence from None
        if fate is None or not (is_final or fate.fate != "rejected"):
            raise silence or problem("unknown-prompt", message_id=message_id)
        return fate

    async def ended_turn(self, workflow_id: WorkflowId, message_id: str) -> ConversationMessage | None:
        """Return the turn of a prompt once it has ended; `None` before.

        Raises 422 if the session rejected the prompt, and 409 if it was withdrawn or discarded.
        """
        fate = await self.fate_of(workflow_id, message_id)
        if fate.fate == "waiting":
            return None
        if fate.fate == "rejected":
            raise rejected(fate.refusal or "invalid", fate.reason or "The prompt was rejected.", field="message")
        if fate.turn_id is None:
            raise problem("not-waiting", message_id=message_id, fate=fate.fate)
        turn = await self._turn(workflow_id, fate.turn_id)
        return turn if turn and turn.is_complete else None

    async def wait_for_turn(
        self, workflow_id: WorkflowId, message_id: str, *, seconds: float
    ) -> ConversationMessage | None:
        """Return the turn of a prompt as soon as it has ended; `None` if it has not after about `seconds`.

        It keeps waiting while no worker answers, or the session is being copied, since the prompt is safe. Raises as
        `ended_turn` does.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        async with self._reader.watches.watching(workflow_id) as watch:
            while True:
                version, is_answered = watch.version, True
                try:
                    async with self._closing.time_limit(until):
                        if turn := await self.ended_turn(workflow_id, message_id):
                            return turn
                except (TimeoutError, ProblemError) as error:
                    if isinstance(error, ProblemError) and not await self._is_safe(workflow_id, error):
                        raise
                    is_answered = False
                # After a change that no worker answered for, no other change may come: so the session is queried again.
                can_wait = is_answered and not watch.is_over
                again_at = until if can_wait else min(until, clock() + RETRY_SECONDS)
                # A session that changes all the time must not delay its callers beyond their time.
                is_time_up, has_changed = self._closing.is_time_up, partial(watch.is_beyond, version)
                if is_time_up(until) or (
                    not await self._closing.wait_for(watch, has_changed, until=again_at) and is_time_up(until)
                ):
                    return None
                await self._closing.wait_for(watch, lambda: watch.may_read, until=min(until, watch.next_read_at))

    async def _is_safe(self, workflow_id: WorkflowId, error: ProblemError) -> bool:
        """Return whether a prompt is safe although its fate can't be read: nobody answers, or a copy is being made."""
        if not error.problem.type.endswith(":unknown-session"):
            return error.problem.status in (503, 504)
        with suppress(ProblemError):
            return (await self._reader.describe(workflow_id)).status == WorkflowExecutionStatus.RUNNING
        return False

    async def _from_session(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the session; `None` if it has nothing."""
        result = await self._reader.queue_result(workflow_id, [message_id])
        position = result.view.positions.get(message_id)
        if position is not None and result.closed is not None:
            return _fate(workflow_id, message_id, fate="discarded", reason=QUEUE_CLOSED)
        if position is not None:
            return _fate(workflow_id, message_id, fate="waiting", position=position)
        if result.view.fates:
            return _fate_of(workflow_id, result.view.fates[0])
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        return None if update.reset else _fate(workflow_id, message_id, fate="started", turn_id=message_id)

    async def _from_archive(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the archive. Raises `StoreUnavailableError`."""
        until = seconds_from_now(self._reader.timeouts.restore)
        if await read_store(self._stores.archive.number_of(workflow_id, message_id), until=until) is not None:
            return _fate(workflow_id, message_id, fate="started", turn_id=message_id)
        fate = await read_store(self._stores.prompts.fate_of(workflow_id, message_id), until=until)
        return None if fate is None else _fate_of(workflow_id, fate)

    async def _turn(self, workflow_id: WorkflowId, turn_id: str) -> ConversationMessage | None:
        """Return a turn from the session or, with its texts, from the archive; `None` if it can't be read."""
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=turn_id, limit=1))
        until, turns = seconds_from_now(self._reader.timeouts.restore), update.updated_messages
        if update.reset:
            try:
                archived_turn = await read_store(self._stores.archive.find(workflow_id, turn_id), until=until)
            except StoreUnavailableError:
                return None
            turns = [archived_turn.turn] if archived_turn else []
        whole = await self._texts.restore_answers(workflow_id, turns, until=until)
        return whole[0] if whole else None


def _fate_of(workflow_id: WorkflowId, fate: Fate) -> PromptFate:
    return _fate(workflow_id, fate.id, **dict(fate))


def _fate(workflow_id: WorkflowId, message_id: str, **fields: object) -> PromptFate:
    return PromptFate.model_validate({"workflow_id": session_id_of(workflow_id), "message_id": message_id, **fields})
