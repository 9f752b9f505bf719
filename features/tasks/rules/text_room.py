"""How much of each text a hand-off has room for, where texts are ranked or condensed (CTX-15).

First every text over its limit is cut, and the messages are chosen by these sizes. What is then left of the policy's
total size, and of the first prompt, is for the cut texts: the most relevant first, or the latest where nothing is
ranked. A text that fits is handed over whole, the first that doesn't is cut less. Texts that the model is to condense
keep a part of the room, so that each of them may be longer.

**Attachments** (CTX-16). The history names them where they belong. Their contents go to the blob store, and they are
attachments of the task's first prompt, so that the model reads code, images and files like those of any prompt.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from turnkeeper.features.tasks.rules.task_context import ConversationHistory, HistoryMessage
from turnkeeper.models.errors import RejectedError, TaskValidationError, preview
from turnkeeper.models.limits import LARGE_TEXT_BYTES, PROMPT_BYTES
from turnkeeper.models.settings.history_policy import HistoryPolicy, TextLimit
from turnkeeper.models.texts import estimate_tokens
from turnkeeper.models.transcript.attachments import (
    MAX_ATTACHMENTS,
    MAX_CONTENT_BYTES,
    Attachment,
    as_reference,
    check_attachments,
    decode_content,
    first_problem,
    hashes_of,
    json_bytes,
)
from turnkeeper.models.wire import Items, error_type_of, field_path, reason_of

MAX_CONDENSED_CHARS = 2_000
"""Maximum of a condensed text, also where the policy's limit is higher."""

GROWN_CONDENSED_CHARS = 900
"""How long a condensed text may become beyond the policy's limit: eight of them are an answer of 8,000 tokens."""

USABLE = 0.8
"""Part of a prompt's tokens and bytes for the texts of a history; the rest is for headers and indentation."""


class CutText(NamedTuple):
    """A message with its whole text: it may be cut."""

    message: HistoryMessage
    whole: str
    limit: TextLimit

    @property
    def cut_chars(self) -> int:
        """How many characters were cut."""
        return max(0, len(self.whole) - len(self.message.content)) if self.message.truncated else 0

    @property
    def condensed_chars(self) -> int:
        """How long the text may be if the model condenses it, by its policy alone."""
        return min(MAX_CONDENSED_CHARS, self.limit.kept_chars or self.limit.max_chars)

    def cut_at(self, chars: int) -> str:
        """Return the text with its first `chars` characters, marked as cut if that is not all."""
        return self.limit.model_copy(update={"max_chars": chars, "kept_chars": chars}).cut(self.whole)


def room_for(texts: Sequence[CutText], policy: HistoryPolicy, *, max_tokens: int) -> int:
    """Return how many characters are left for cut texts, in the policy's total size and in a prompt of `max_tokens`."""
    wholes = [{"content": text.whole} for text in texts]
    chars = max(1, sum(len(text.whole) for text in texts))
    present = sum(len(text.message.content) for text in texts)
    by_tokens = USABLE * max_tokens * chars / max(1, estimate_tokens(wholes))
    by_bytes = USABLE * PROMPT_BYTES * chars / max(1, sum(len(text.whole.encode(errors="replace")) for text in texts))
    total = sum(text.message.size for text in texts)
    return max(0, min(policy.max_total_chars - total, int(min(by_tokens, by_bytes)) - present))


def grown_texts(texts: Sequence[CutText], ranks: Sequence[float], *, room: int, condense: bool) -> list[int]:
    """Return how many characters of each text are handed over, or may be condensed to: its whole length, if it fits.

    `ranks` are the texts' relevances; of equal ones, the latest comes first.

    >>> limit = TextLimit(max_chars=10, marker="")
    >>> def text(chars: int) -> CutText:
    ...     message = HistoryMessage(
    ...         role="assistant", content="x" * 10, timestamp="", truncated=chars > 10, original_length=chars)
    ...     return CutText(message, "x" * chars, limit)
    >>> grown_texts([text(50), text(50), text(5)], [0.1, 1.0, 0.5], room=60, condense=False)
    [30, 50, 5]
    """
    lengths = [text.limit.kept_chars or text.limit.max_chars if text.cut_chars else len(text.whole) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: (-ranks[index], -index))
    cut = [index for index in order if texts[index].cut_chars]
    reserves = {index: _growth(texts[index]) if condense else 0 for index in cut}
    for index in list(cut):
        needed = texts[index].cut_chars
        if needed <= room - sum(reserves.values()) + reserves[index]:
            lengths[index] = len(texts[index].whole)
            room -= needed
            cut.remove(index)
            del reserves[index]
        elif not condense:
            lengths[index] += max(0, room)
            break
    for index in cut if condense else ():
        growth = min(_growth(texts[index]), max(0, room) // len(cut))
        lengths[index] = texts[index].condensed_chars + growth
    return lengths


def _growth(text: CutText) -> int:
    """Return by how many characters a condensed text may grow."""
    return max(0, min(GROWN_CONDENSED_CHARS, len(text.whole)) - text.condensed_chars)


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
    contents = [decode_content(one) for one in attachments]
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
