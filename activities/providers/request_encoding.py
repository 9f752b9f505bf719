"""Encoding requests, for all vendors: attachments, blocks as they came, names, ids of calls, results, tools. Pure.

Before a request is encoded, its attachments become text where they can: every attachment is named below its message's
text, and code and text files follow their name in a fence. Only images and PDFs stay attachments, if the model reads
them; they follow the text in the order of their names. So each API's encoder has to encode nothing but images and PDFs.
What a model is not shown, or can't be, has the reason behind its name (CTX-16).

A step goes back to the API that it came from block for block, with its ids, unless an earlier step has the same ids.
Otherwise, and for any other API, it is encoded again from its parts, with ids that the vendor accepts and that are
unique within a request. Everything depends only on the messages so far, in their order, so that the beginning of a
conversation is always encoded the same (AGT-3).

Vendors reject a whole request for one schema of a tool: with alternatives at its top, with an array that doesn't say
what is in it. So alternatives at the top are merged into one object, and every array gets `items`. A call's arguments
are validated against the tool's own schema before it runs, so nothing wrong runs; and where one object can't say all
that the schema says, the schema stands in the description too (AGT-4).
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count

from pydantic import JsonValue

from turnkeeper.models.texts import bound_text
from turnkeeper.models.transcript.attachments import (
    IMAGE_MEDIA_TYPES,
    MAX_SHOWN_CHARS,
    PDF,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    decode_content,
    detect_image_type,
    has_inline_content,
    is_text,
    placeholder_text,
)
from turnkeeper.models.transcript.model_call import MAX_DESCRIPTION_CHARS, ModelMessage, ModelRequest, ToolSpec


@dataclass(frozen=True)
class Sight:
    """The kinds of attachments that a model reads, besides text."""

    images: bool = True
    pdfs: bool = True


FULL = Sight()
TEXT_ONLY = Sight(images=False, pdfs=False)

Medium = ImageAttachment | FileAttachment
"""An image or a PDF that the model gets as such."""

NOT_READ = "(not shown: this model can't read it)"
NOT_STORED = "(its content can't be loaded now)"

WithheldNote = Callable[[str], str | None]
"""Returns why the attachment of an id is withheld from the model; `None` if it is not."""


def visible_request(
    request: ModelRequest, sight: Sight, *, withheld: WithheldNote = lambda attachment_id: None
) -> ModelRequest:
    r"""Return the request as a model of this `sight` is shown it.

    >>> code = CodeAttachment(type="code", name="a.py", language="python", content="print(1)")
    >>> image = ImageAttachment(type="image", name="cat.png", url="https://example.com/cat.png")
    >>> message = ModelMessage(role="user", content="Look.", attachments=[code, image])
    >>> request = ModelRequest.model_validate({"head": {}, "messages": [message]})
    >>> visible = visible_request(request, TEXT_ONLY).messages[0]
    >>> print(visible.content)
    Look.
    <BLANKLINE>
    [Code: a.py, python, 8 bytes]
    ```python
    print(1)
    ```
    <BLANKLINE>
    [Image: cat.png, https://example.com/cat.png] (not shown: this model can't read it)
    >>> visible.attachments
    []
    """
    if not any(message.attachments for message in request.messages):
        return request
    messages = [_visible_message(message, sight, withheld) for message in request.messages]
    return request.model_copy(update={"messages": messages})


def media_of(message: ModelMessage) -> list[Medium]:
    """Return the images and PDFs of a message of a visible request."""
    return [attachment for attachment in message.attachments if not isinstance(attachment, CodeAttachment)]


def media_in(request: ModelRequest) -> Iterator[Medium]:
    """Yield the images and PDFs of a visible request, oldest first."""
    for message in request.messages:
        yield from media_of(message)


def id_of(medium: Medium) -> str:
    """Return a global id of an attachment: the hash of its bytes, or its URL.

    >>> id_of(ImageAttachment(type="image", url="https://example.com/cat.png"))
    'https://example.com/cat.png'
    """
    url = medium.url if isinstance(medium, ImageAttachment) else None
    return url or medium.hash or sha256(medium.data.encode()).hexdigest()


def data_url(medium: Medium) -> str:
    """Return the content as a URL: its own address, or its data.

    >>> data_url(ImageAttachment(type="image", media_type="image/gif", data="R0lG"))
    'data:image/gif;base64,R0lG'
    """
    url = medium.url if isinstance(medium, ImageAttachment) else None
    return url or f"data:{medium.media_type};base64,{medium.data}"


def pdf_name(pdf: FileAttachment) -> str:
    """Return the name of a PDF with its ending, by which OpenAI knows the type.

    >>> pdf_name(FileAttachment(type="file", name="paper", media_type=PDF))
    'paper.pdf'
    """
    return pdf.name if pdf.name.lower().endswith(".pdf") else f"{pdf.name}.pdf"


def _visible_message(message: ModelMessage, sight: Sight, withheld: WithheldNote) -> ModelMessage:
    if not message.attachments:
        return message
    renderings = [_render(_as_image(attachment), sight, withheld) for attachment in message.attachments]
    return message.model_copy(
        update={
            "content": "\n\n".join(filter(None, [message.content, *(text for text, _ in renderings)])),
            "attachments": [medium for _, medium in renderings if medium],
        }
    )


def _render(attachment: Attachment, sight: Sight, withheld: WithheldNote) -> tuple[str, Medium | None]:
    """Return an attachment as text, and as an image or a PDF if the model gets it."""
    name = placeholder_text(_with_size(attachment))
    if isinstance(attachment, CodeAttachment):
        is_missing = attachment.hash is not None and not has_inline_content(attachment)
        return (
            f"{name} {NOT_STORED}" if is_missing else f"{name}\n{fenced(attachment.content, attachment.language)}",
            None,
        )
    if not attachment.data and not (isinstance(attachment, ImageAttachment) and attachment.url):
        return f"{name} {NOT_STORED}", None
    if isinstance(attachment, FileAttachment) and attachment.media_type != PDF:
        text = _text_in(attachment)
        return f"{name} {NOT_READ}" if text is None else f"{name}\n{fenced(text)}", None
    if not (sight.images if isinstance(attachment, ImageAttachment) else sight.pdfs):
        return f"{name} {NOT_READ}", None
    note = withheld(id_of(attachment))
    return (f"{name} {note}", None) if note else (name, attachment)


IMAGE_SIGNATURE_CHARS = 24
"""Characters of base64 that tell the type of an image."""


def _with_size(attachment: Attachment) -> Attachment:
    """Return the attachment with the size of its content, so that its name does not depend on where that is stored."""
    if attachment.bytes is not None or not has_inline_content(attachment):
        return attachment
    if isinstance(attachment, CodeAttachment):
        return attachment.model_copy(update={"bytes": len(attachment.content.encode())})
    return attachment.model_copy(update={"bytes": len(attachment.data.rstrip("=")) * 3 // 4})


def _as_image(attachment: Attachment) -> Attachment:
    """Return a file that is an image as one, and an image with the type that its content has.

    Vendors refuse a request with an image of another type than it says.
    """
    if isinstance(attachment, CodeAttachment) or (
        isinstance(attachment, FileAttachment) and attachment.media_type not in IMAGE_MEDIA_TYPES
    ):
        return attachment
    kind = attachment.media_type
    with suppress(ValueError):
        kind = detect_image_type(b64decode(attachment.data[:IMAGE_SIGNATURE_CHARS])) or kind
    if isinstance(attachment, ImageAttachment):
        return attachment.model_copy(update={"media_type": kind})
    return ImageAttachment.model_validate({**attachment.model_dump(), "type": "image", "media_type": kind})


def _text_in(file: FileAttachment) -> str | None:
    """Return the text of a file; `None` if it is none."""
    if not is_text(file.media_type):
        return None
    try:
        content = decode_content(file) or b""
        return None if b"\0" in content else content.decode()
    except ValueError:
        return None


def fenced(text: str, language: str = "") -> str:
    """Return a text in a fence that it can't end: one that is longer than any run of backticks in it.

    >>> print(fenced("```", "md"))
    ````md
    ```
    ````
    """
    text = bound_text(text, MAX_SHOWN_CHARS, 4 * MAX_SHOWN_CHARS)
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{_NOT_A_LANGUAGE.sub('', language)}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


_NOT_A_LANGUAGE = re.compile(r"[^A-Za-z0-9+#._-]")


MAX_NAME_CHARS = 64

Block = dict[str, JsonValue]
"""One of a vendor's own blocks."""

OPENING = "(The conversation began earlier.)"
"""A user's message for conversations that begin with the assistant: with a summary, or a note of what is left out."""

_ODD = re.compile(r"[^A-Za-z0-9_-]")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def opened(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages, with `OPENING` before them unless a user speaks first, as some vendors demand.

    >>> [message.role for message in opened([ModelMessage(role="assistant", content="[3 earlier turns ...]")])]
    ['user', 'assistant']
    """
    if not messages or messages[0].role == "user":
        return messages
    return [ModelMessage(role="user", content=OPENING), *messages]


def own_items(message: ModelMessage, api: str, *, call_id_of: Callable[[Block], str | None]) -> list[Block] | None:
    """Return the vendor's own blocks of the message if they can go back to `api`; otherwise `None`.

    `call_id_of` returns the id of a block that is a tool call. The calls among the blocks must be those of the message,
    since every vendor rejects a call without its result, and have names that vendors accept: models make up others.
    """
    state = message.state
    if state is None or state.api != api or state.blob is not None:
        return None
    items = [item for item in state.items if isinstance(item, dict)]
    ids = [call_id for item in items if (call_id := call_id_of(item)) is not None]
    is_complete = len(items) == len(state.items) > 0
    is_answered = ids == [call.id for call in message.tool_calls] and len(set(ids)) == len(ids)
    is_sendable = all(call.name == sendable_name(call.name) for call in message.tool_calls)
    return items if is_complete and is_answered and is_sendable else None


def sendable_name(name: str) -> str:
    """Return a name or id in the form that every vendor accepts: 1 to 64 letters, digits, `_` and `-`.

    >>> sendable_name("files.read it!"), sendable_name("")
    ('files_read_it_', '_')
    """
    return _ODD.sub("_", name)[:MAX_NAME_CHARS] or "_"


def sendable_id(vendor_id: str, number: int) -> str:
    """Return the candidate `number`, from 1, for an id that most vendors accept.

    >>> sendable_id("call:1", 1), sendable_id("call:1", 2)
    ('call_1', 'call_1-2')
    """
    name = sendable_name(vendor_id)
    return name if number == 1 else f"{name[: MAX_NAME_CHARS - len(str(number)) - 1]}-{number}"


def short_id(vendor_id: str, number: int) -> str:
    """Return the candidate `number`, from 1, for an id of nine letters and digits, as Mistral's templates demand.

    >>> short_id("call_1", 1), short_id("call_1", 2), short_id("D681PevKs", 1)
    ('ea2e877e7', 'baf62cb90', 'D681PevKs')
    """
    if number == 1 and _SHORT_ID.fullmatch(vendor_id):
        return vendor_id
    return sha256(f"{number} {vendor_id}".encode()).hexdigest()[:9]


class CallIds:
    """Assigns the ids of one request's tool calls. Call its methods for the messages in their order.

    `new_id` returns candidates for the id of a call, by the vendor's id and a number from 1.

    >>> from turnkeeper.models.transcript.model_call import CallPart
    >>> calls = [CallPart(kind="call", id="c:1", name="look"), CallPart(kind="call", id="c:1", name="look")]
    >>> ids = CallIds()
    >>> ids.new_ids_for(ModelMessage(role="assistant", tool_calls=calls))
    ['c_1', 'c_1-2']
    >>> [ids.id_for_result(ModelMessage(role="tool", call_id="c:1")) for _ in calls]
    ['c_1', 'c_1-2']
    """

    def __init__(self, new_id: Callable[[str, int], str] = sendable_id) -> None:
        self._new_id = new_id
        self._used_ids: set[str] = set()
        self._unanswered: dict[str, list[str]] = {}

    def reserve_own_ids(self, message: ModelMessage) -> bool:
        """Return whether the message can keep its ids, and reserve them if so.

        Some servers use the same ids in each answer, while vendors require unique ids.
        """
        vendor_ids = [call.id for call in message.tool_calls]
        are_free = len(set(vendor_ids)) == len(vendor_ids) and self._used_ids.isdisjoint(vendor_ids)
        if are_free:
            self._open(message, vendor_ids)
        return are_free

    def new_ids_for(self, message: ModelMessage, *, keeps: Callable[[str], bool] | None = None) -> list[str]:
        """Return new ids for the message's calls, in their order; those that `keeps` accepts stay if they are free."""
        ids: list[str] = []
        for call in message.tool_calls:
            stays = keeps is not None and keeps(call.id) and call.id not in self._used_ids
            ids.append(call.id if stays else self._free(call.id))
            self._used_ids.add(ids[-1])
        self._open(message, ids)
        return ids

    def id_for_result(self, message: ModelMessage) -> str:
        vendor_id = message.call_id or ""
        waiting = self._unanswered.get(vendor_id)
        return waiting.pop(0) if waiting else self._new_id(vendor_id, 1)

    def _open(self, message: ModelMessage, ids: list[str]) -> None:
        # The results of a step follow it directly, so calls of an earlier step can't be meant any more.
        self._used_ids.update(ids)
        self._unanswered = {}
        for call, call_id in zip(message.tool_calls, ids, strict=True):
            self._unanswered.setdefault(call.id, []).append(call_id)

    def _free(self, call_id: str) -> str:
        return next(new for number in count(1) if (new := self._new_id(call_id, number)) not in self._used_ids)


def result_text(message: ModelMessage) -> str:
    r"""Return the text of a tool message for APIs without a field for a call's status: it precedes, unless it is `ok`.

    >>> result_text(ModelMessage(role="tool", content="Read a.txt\n\none", status="ok"))
    'Read a.txt\n\none'
    >>> result_text(ModelMessage(role="tool", content="pay: outcome unknown", status="outcome_unknown"))
    '[outcome unknown] pay: outcome unknown'
    """
    if message.status in (None, "ok"):
        return message.content
    return f"[{message.status.replace('_', ' ')}] {message.content}"


# ---- tools


MAX_MERGED = 200
"""Maximum of schemas that are merged into one: references may double at every level."""

_ALTERNATIVES = ("allOf", "anyOf", "oneOf")
_NOT_AT_THE_TOP = frozenset({*_ALTERNATIVES, "enum", "not", "$ref"})
_DEFINITIONS = ("$defs", "definitions")
_MERGED_KEYS = frozenset({"type", "title", "properties", "required", "additionalProperties", "$schema", *_DEFINITIONS})
"""Keywords that a branch may have without any loss."""

_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
_LISTS = frozenset({*_ALTERNATIVES, "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"})


def plain_schema(tool: ToolSpec) -> Block:
    """Return the schema of the tool's arguments: an object without alternatives at its top, its arrays with `items`.

    >>> forms = [{"properties": {"text": {"type": "string"}}}, {"properties": {"lines": {"type": "array"}}}]
    >>> plain_schema(ToolSpec(name="write", input_schema={"oneOf": forms}))
    {'properties': {'text': {'type': 'string'}, 'lines': {'type': 'array', 'items': {}}}, 'type': 'object'}
    """
    merged, _ = _Merge(tool.input_schema).result()
    return {**_with_items(merged), "type": "object"}


def description_of(tool: ToolSpec) -> str:
    """Return the tool's description, with its schema if `plain_schema` says less than that.

    >>> description_of(ToolSpec(name="now", description="The time.", input_schema={"type": "object"}))
    'The time.'
    >>> description_of(ToolSpec(name="now", input_schema={"anyOf": [{"required": ["at"]}, {"required": ["in"]}]}))
    'Its arguments, as JSON Schema: {"anyOf": [{"required": ["at"]}, {"required": ["in"]}]}'
    """
    _, is_exact = _Merge(tool.input_schema).result()
    description = (tool.description if tool.description.strip() else "") if is_exact else description_with_schema(tool)
    return bound_text(description, MAX_DESCRIPTION_CHARS, 4 * MAX_DESCRIPTION_CHARS)


def description_with_schema(tool: ToolSpec) -> str:
    """Return the tool's description, and behind it the schema of its arguments as text."""
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return f"{tool.description}\n\nIts arguments, as JSON Schema: {schema}".strip()


class _Merge:
    """Merges the alternatives at the top of one schema."""

    def __init__(self, schema: Block) -> None:
        self._root = schema
        self._merged = 0

    def result(self) -> tuple[Block, bool]:
        """Return the schema without alternatives at its top, and whether it says the same."""
        return self._merge(self._root)

    def _merge(self, schema: Block) -> tuple[Block, bool]:
        self._merged += 1
        own = {key: value for key, value in schema.items() if key not in _NOT_AT_THE_TOP}
        is_exact = schema.keys().isdisjoint({"enum", "not"})
        for keyword, branches in _branches_of(schema):
            objects = [self._resolved(branch) for branch in branches]
            merged = [self._merge(branch) for branch in objects if branch is not None and self._merged < MAX_MERGED]
            is_exact &= len(merged) == len(branches) and all(exact for _, exact in merged)
            is_exact &= keyword == "allOf" or len(branches) == 1
            own, is_joined = _joined(own, [branch for branch, _ in merged], is_alternative=keyword != "allOf")
            is_exact &= is_joined
        return own, is_exact

    def _resolved(self, branch: JsonValue) -> Block | None:
        """Return the schema of a branch, which may be a reference; `None` if it is none of an object."""
        if not isinstance(branch, dict) or branch.get("type", "object") != "object":
            return None
        reference = branch.get("$ref")
        return self._target(reference) if isinstance(reference, str) and len(branch) == 1 else branch

    def _target(self, reference: str) -> Block | None:
        target: JsonValue = self._root
        for name in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [""]:
            target = target.get(name) if isinstance(target, dict) else None
        return target if isinstance(target, dict) and target.get("type", "object") == "object" else None


def _branches_of(schema: Block) -> Iterable[tuple[str, Sequence[JsonValue]]]:
    """Yield each keyword with the schemas that it combines; a reference is one that must hold."""
    if "$ref" in schema:
        yield "allOf", [{"$ref": schema["$ref"]}]
    for keyword in _ALTERNATIVES:
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            yield keyword, branches


def _joined(own: Block, branches: Sequence[Block], *, is_alternative: bool) -> tuple[Block, bool]:
    """Return `own` with what the branches add, and whether it says all that they say.

    Of a property with several schemas any may hold; one that `own` has stays as it is there.
    """
    properties = _properties(own)
    added: dict[str, list[JsonValue]] = {}
    for branch in branches:
        for name, schema in _properties(branch).items():
            if schema not in added.setdefault(name, []):
                added[name].append(schema)
    is_exact = all(branch.keys() <= _MERGED_KEYS for branch in branches)
    for name, schemas in added.items():
        is_exact &= len(schemas) == 1 and properties.get(name, schemas[0]) == schemas[0]
        properties.setdefault(name, schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
    required = list[JsonValue](_names(own))
    by_branch = [_names(branch) for branch in branches]
    for name in dict.fromkeys(name for names in by_branch for name in names):
        is_required = all(name in names for names in by_branch) if is_alternative else True
        required += [name] if is_required and name not in required else []
    joined = {**own, **({"properties": properties} if properties else {})}
    return {**joined, **({"required": required} if required else {})}, is_exact


def _properties(schema: Block) -> Block:
    properties = schema.get("properties")
    return dict(properties) if isinstance(properties, dict) else {}


def _names(schema: Block) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _with_items(schema: Block) -> Block:
    """Return the schema with `items` in each array, at every level: OpenAI and Gemini reject one without.

    >>> _with_items({"properties": {"a": {"type": ["array", "null"]}, "b": {"items": True, "type": "array"}}})
    {'properties': {'a': {'type': ['array', 'null'], 'items': {}}, 'b': {'items': {}, 'type': 'array'}}}
    """
    completed = {key: _inner(key, value) for key, value in schema.items()}
    kind = schema.get("type")
    if kind == "array" or (isinstance(kind, list) and "array" in kind):
        completed["items"] = {} if completed.get("items") in (None, True) else completed["items"]
    return completed


def _inner(key: str, value: JsonValue) -> JsonValue:
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _of_schema(schema) for name, schema in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_of_schema(schema) for schema in value]
    return _of_schema(value) if key in _SINGLE else value


def _of_schema(value: JsonValue) -> JsonValue:
    return _with_items(value) if isinstance(value, dict) else value
