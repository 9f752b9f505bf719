"""Storing the contents of attachments before a prompt is signalled (CTX-16).

A prompt in Temporal's history has references only. Its contents are stored first, by session and hash: the same prompt
sent again stores the same rows, and they are deleted with the session. If this gateway dies before the prompt is
signalled, or the session started, nobody refers to them, and nobody can read what is under an id without a session.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from turnkeeper.api.problems import UNKNOWN_UPLOAD, ProblemError, invalid, problem
from turnkeeper.api.store_calls import Answer, read_store, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import LARGE_TEXT_BYTES, Limits
from turnkeeper.models.transcript.attachment_contents import hashes_of, json_bytes, refer_attachments
from turnkeeper.models.transcript.attachment_rules import SIGNATURE_BYTES, check_attachments, check_content
from turnkeeper.models.transcript.attachments import Attachment, CodeAttachment
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
        Raises 422 naming the field below `name`, also for the hash of a content that was not uploaded, and 503.
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
        sizes = await self._call(self._blobs.sizes_of(owner, hashes))
        heads = await self._call(self._blobs.heads_of(owner, hashes, max_bytes=SIGNATURE_BYTES))
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
