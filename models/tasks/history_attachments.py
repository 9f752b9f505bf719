"""Attachments of the messages of a history (CTX-16).

The history names them where they belong. Their contents go to the blob store, and they are attachments of the task's
first prompt, so that the model reads code, images and files like those of any prompt.
"""

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from turnkeeper.models.errors import RejectedError, TaskValidationError, preview
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.invalid_values import error_type_of, reason_of
from turnkeeper.models.limits import LARGE_TEXT_BYTES
from turnkeeper.models.tasks.stored_history import ConversationHistory, HistoryMessage
from turnkeeper.models.transcript.attachment_contents import as_reference, content_of, hashes_of, json_bytes
from turnkeeper.models.transcript.attachment_rules import check_attachments, first_problem
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS, MAX_CONTENT_BYTES, Attachment
from turnkeeper.models.wire import Items

_LIST: TypeAdapter[list[Attachment]] = TypeAdapter(Items[Attachment])


def read_attachments(
    value: object, *, path: str, has_stored_contents: bool = False
) -> tuple[list[Attachment], dict[str, bytes]]:
    """Return the attachments of a message by reference, and their contents by hash. `path` is that of the list.

    Raises `TaskValidationError` for the first wrong one. A hash is wrong, since a task that does not exist has no
    uploads, unless it `has_stored_contents`: then it is one of the session that the history is inherited from.
    """
    if value is None:
        return [], {}
    try:
        attachments = _LIST.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = field_path([part for part in first["loc"] if part not in ("code", "image", "file")])
        separator = "" if where.startswith("[") or not where else "."
        raise TaskValidationError(
            f"{path}{separator}{where}", reason_of(first), preview(first["input"]), error_type_of(dict(first))
        ) from error
    for index, one in enumerate(attachments):
        problem = ("hash", "send the content itself") if one.hash and not has_stored_contents else first_problem(one)
        if problem:
            field, reason = problem
            input_value = getattr(one, field, None) or one.model_dump(exclude_defaults=True)
            raise TaskValidationError(f"{path}[{index}].{field}", reason, preview(input_value), "invalid_value")
    try:
        check_attachments(attachments, field=path)
    except RejectedError as rejection:
        reason = rejection.message.removeprefix(f"{path}: ").removesuffix(".")
        raise TaskValidationError(path, reason, preview(value), "too_long") from None
    contents = [content_of(one) for one in attachments]
    references = [
        one if content is None else as_reference(one, content)
        for one, content in zip(attachments, contents, strict=True)
    ]
    by_hash = {one.hash: content for one, content in zip(references, contents, strict=True) if one.hash and content}
    return references, by_hash


def with_numbers(messages: Sequence[HistoryMessage]) -> list[HistoryMessage]:
    """Return the messages with a name for each stored attachment that has none: its type and a number.

    So the agent can tell which message has which. The same attachment has the same number in all messages.

    >>> from turnkeeper.models.transcript.attachments import CodeAttachment
    >>> codes = [CodeAttachment(type="code", hash=hash) for hash in ("a", "b", "a")]
    >>> message = HistoryMessage(role="user", content="", timestamp="", truncated=False, original_length=0,
    ...                          attachments=codes)
    >>> [attachment.name for attachment in with_numbers([message])[0].attachments]
    ['code 1', 'code 2', 'code 1']
    """
    unnamed = list[Attachment]()
    for message in messages:
        unnamed += [one for one in message.attachments if one.hash and not one.name and one not in unnamed]
    named = [one.model_copy(update={"name": f"{one.type} {number}"}) for number, one in enumerate(unnamed, start=1)]

    def numbered(one: Attachment) -> Attachment:
        return named[unnamed.index(one)] if one in unnamed else one

    return [
        message.model_copy(update={"attachments": [numbered(one) for one in message.attachments]})
        if message.attachments
        else message
        for message in messages
    ]


def attachments_of(history: ConversationHistory | None) -> list[Attachment]:
    """Return the attachments for the first prompt, each once: the latest that a prompt may have."""
    latest = list[Attachment]()
    for message in reversed(history.messages if history else []):
        for one in reversed(message.attachments):
            more = [*latest, one]
            has_room = sum(other.bytes or 0 for other in more) <= MAX_CONTENT_BYTES
            if one not in latest and len(more) <= MAX_ATTACHMENTS and has_room and json_bytes(more) <= LARGE_TEXT_BYTES:
                latest = more
    return latest[::-1]


def contents_of(attachments: Sequence[Attachment], contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the contents that these attachments refer to."""
    return {one.hash: contents[one.hash] for one in attachments if one.hash and one.hash in contents}


def missing_hashes(attachments: Sequence[Attachment], contents: Mapping[str, bytes]) -> set[str]:
    """Return the hashes of contents that only the session has from which the history is inherited."""
    return hashes_of(attachments) - contents.keys()


def has_attachments(history: object) -> bool:
    """Return whether any message of a history that is not validated has attachments."""
    messages = history if isinstance(history, list) else []
    return any(isinstance(message, Mapping) and bool(message.get("attachments")) for message in messages)
