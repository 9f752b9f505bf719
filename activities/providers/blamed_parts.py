"""Finding the part of a request that a vendor's refusal is about. Pure but for what a model has read before (AGT-9).

The words, the place and the codes of the refusal are read against the request that was sent: a tool by its name or its
index, an attachment by its place or its kind, a parameter by its name, with the number that the vendor states. Where
nothing is blamed, whole classes are left out, one more in each try: `suspects`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

from turnkeeper.activities.providers.protocol import ModelError, VendorRefusal
from turnkeeper.activities.providers.refused_parts import (
    Body,
    RefusableApi,
    SentRequest,
    list_version,
    name_of_tool,
    names_of_tools,
    present_parameters,
    tool_version,
)
from turnkeeper.activities.providers.request_encoding import Medium, id_of, media_in, media_of
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.model_call import MAX_NAME_CHARS, ModelRequest, RefusedPart

HasRead = Callable[[Medium], bool]
"""Returns whether the model has answered a request with this content before."""

BAD_REQUEST_STATUSES = frozenset({400, 404, 413, 415, 422, 500, 501})
"""Statuses of refusals that may be about a part; `vendor_errors.py` says which of 404, 500 and 501 are."""

MIN_STATED_LIMIT = 256
"""The least number that counts as a limit of tokens: lower ones are counts, ranges' ends and parts of versions."""

MIN_LARGE_MEDIA = 1_000_000
"""Characters of base64 in a request from which they may be why it is too large."""

REFUSED = "the model's provider refused it"
UNNAMED = "the model's provider refused the request, and took it without"
NOT_READ = "the model does not read them"
UNREADABLE = "the model's provider could not read it"
TOO_MUCH = "no longer shown: together with the others it was too large for the model's provider"


def is_refusal(error: ModelError) -> bool:
    """Return whether the vendor refused the request, for a reason that may be a part of it."""
    refusal = error.refusal
    if refusal is None or error.should_retry or not (refusal.status < 400 or refusal.status in BAD_REQUEST_STATUSES):
        return False
    is_of_attachments = refusal.of_attachments is not None and error.error_type != "refusal"
    return is_of_attachments or error.error_type in ("bad_request", "stale_reasoning", "context_too_long")


def blamed_parts(
    error: ModelError, refused: SentRequest, original: ModelRequest, api: RefusableApi, *, has_read: HasRead
) -> Iterator[Sequence[RefusedPart]]:
    """Yield what may be left out because of the error, the likeliest first.

    `original` is the request with all its parts.
    """
    refusal = error.refusal
    if refusal is None:
        return
    if error.error_type == "stale_reasoning":
        yield _state(refused, REFUSED)
    yield from _blamed_attachments(refusal, refused, api, has_read)
    if error.error_type in ("bad_request", "context_too_long"):
        yield from _blamed_bound(refusal, refused, api, is_too_long=error.error_type == "context_too_long")
    if error.error_type != "bad_request":
        return
    yield from _blamed_tool(refusal, refused, original)
    yield from _blamed_parameter(refusal, refused, api)
    if _ABOUT_STATE.search(refusal.words):
        yield _state(refused, REFUSED)
    if refused.request.head.tools and _ABOUT_TOOL_SUPPORT.search(refusal.words):
        yield [_all_tools(original, "tool", api.advice_without_tools or "the model takes no tools")]
    if refused.request.head.tools and _ABOUT_SCHEMAS.search(refusal.words):
        yield [_all_tools(original, "tool_schema", REFUSED)]
        yield [_all_tools(original, "tool", REFUSED)]


def suspects(
    refused: SentRequest, original: ModelRequest, api: RefusableApi, *, has_read: HasRead, is_head_accepted: bool
) -> Iterator[Sequence[RefusedPart]]:
    """Yield the classes of parts to leave out one after the other if the vendor blames nothing.

    `is_head_accepted`: the model has answered with the same tools and parameters before, so that they are no suspects.
    """
    yield _state(refused, UNNAMED)
    if not is_head_accepted:
        names = (
            name for name in present_parameters(refused.body, api) if "." not in name and name not in api.only_named
        )
        yield [RefusedPart(kind="parameter", name=name, reason=UNNAMED) for name in names]
    new_media = _new_media(refused.request, has_read)
    yield _attachments(new_media, UNNAMED)
    if not is_head_accepted:
        yield _attachments(list(media_in(refused.request)), UNNAMED)
        if refused.request.head.tools:
            yield [_all_tools(original, "tool_schema", UNNAMED)]
            yield [_all_tools(original, "tool", UNNAMED)]


def _state(refused: SentRequest, reason: str) -> list[RefusedPart]:
    has_state = any(message.state for message in refused.request.messages)
    return [RefusedPart(kind="state", reason=reason)] if has_state else []


_ABOUT_STATE = re.compile(
    r"encrypted|\breasoning(?: (?:input )?items?| content| block|_details)|\b(?:redacted_)?thinking[`'\"]? blocks?"
    r"|\bsignature|thought",
    re.IGNORECASE,
)
"""How vendors speak of reasoning that they get back, in whatever words they refuse it."""


# ---- attachments


def _blamed_attachments(
    refusal: VendorRefusal, refused: SentRequest, api: RefusableApi, has_read: HasRead
) -> Iterator[Sequence[RefusedPart]]:
    blamed, media = refusal.of_attachments, list(media_in(refused.request))
    if blamed is None or not media:
        return
    match blamed.problem:
        case "no_images" | "no_pdfs" | "no_media":
            kinds = [kind for kind in dict.fromkeys(map(_kind, media)) if blamed.problem in ("no_media", f"no_{kind}")]
            if api.learns_sight:
                yield [RefusedPart(kind=kind, reason=NOT_READ) for kind in kinds]
            yield _attachments([one for one in media if _kind(one) in kinds], REFUSED)
        case "unreadable":
            yield _attachments(media_at(blamed.place, refused.body, media), UNREADABLE)
            yield _attachments(_new_media(refused.request, has_read), UNREADABLE)
            yield _attachments(media, UNREADABLE)
        case "too_large":
            yield _attachments(_oldest_half(media), TOO_MUCH)
        case "too_many":
            too_many = "no longer shown: there were more than the model's provider accepts in a request"
            yield _attachments(_oldest_beyond(blamed.limit, media), too_many)


def _attachments(media: Sequence[Medium], reason: str) -> list[RefusedPart]:
    return [RefusedPart(kind="attachment", name=id_of(medium), reason=reason) for medium in media]


def _kind(medium: Medium) -> Literal["images", "pdfs"]:
    return "images" if isinstance(medium, ImageAttachment) else "pdfs"


def _new_media(request: ModelRequest, has_read: HasRead) -> list[Medium]:
    """Return the media of the newest message with any that the vendor has not accepted before."""
    for message in reversed(request.messages):
        if new := [medium for medium in media_of(message) if not has_read(medium)]:
            return new
    return []


def media_at(place: str, body: Mapping[str, object], media: Sequence[Medium]) -> list[Medium]:
    """Return the media at a `place` in the body, such as `messages.0.content.1.image.source`; none if it has no end.

    Names that are no keys are types: vendors write them in between.
    """
    first, *rest = re.findall(r"\w+", place) or [""]
    value = body.get(first)
    for part in rest:
        if isinstance(value, list) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(part, value)
    texts = list(_texts_in(value))
    return [medium for medium in media if any(text.endswith(_content(medium)) for text in texts)]


def _content(medium: Medium) -> str:
    return (medium.url if isinstance(medium, ImageAttachment) else None) or medium.data


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _texts_in(one)


def _oldest_beyond(limit: int | None, media: Sequence[Medium]) -> Sequence[Medium]:
    """Return all media but the newest `limit`, or but half of them if it is unknown; contents of the newest stay."""
    count = limit if limit is not None and limit < len(media) else len(media) // 2
    oldest, newest = media[: len(media) - count], set(map(id_of, media[len(media) - count :]))
    return [medium for medium in oldest if id_of(medium) not in newest] or oldest


def _oldest_half(media: Sequence[Medium]) -> Sequence[Medium]:
    """Return the oldest media with half of the data, at least one; none if there is little data."""
    sizes = [len(medium.data) for medium in media]
    total = sum(sizes)
    if total < MIN_LARGE_MEDIA:
        return []
    return media[: 1 + sum(size < total / 2 for size in accumulate(sizes))]


# ---- tools


_TOOL_INDEX = re.compile(r"(?:function_?declarations|functions|tools)(?:\.|\[)(\d+)", re.IGNORECASE)
_ABOUT_SCHEMAS = re.compile(
    r"invalid schema|array schema|schema for function|input_schema|json schema|function_declarations"
    r"|function parameters|\btools?\b.{0,80}\b(?:schema|parameters|definition)",
    re.IGNORECASE,
)
_ABOUT_TOOL_SUPPORT = re.compile(
    r"support (?:for )?(?:tools|function call)|(?:tools?|function calling) (?:is|are) not supported|tools param"
    r"|tool[ _-](?:choice|calling|use)\b",
    re.IGNORECASE,
)
"""How endpoints say that a model doesn't support tool calling."""


def _blamed_tool(
    refusal: VendorRefusal, refused: SentRequest, original: ModelRequest
) -> Iterator[Sequence[RefusedPart]]:
    tools, indexes = refused.body.get("tools"), _TOOL_INDEX.findall(f"{refusal.parameter} {refusal.words}")
    index = int(indexes[-1]) if indexes else -1  # of the innermost list, as in `tools[0].function_declarations[2]`
    at_index = tools[index] if isinstance(tools, list) and 0 <= index < len(tools) else None
    name = name_of_tool(at_index) if at_index else _named_tool(refusal.words, refused.body)
    tool = next((tool for tool in original.head.tools if tool.name == name), None)
    if tool is None:
        return
    yield [RefusedPart(kind="tool_schema", name=tool.name, version=tool_version(tool), reason=REFUSED)]
    yield [RefusedPart(kind="tool", name=tool.name, version=tool_version(tool), reason=REFUSED)]


def _named_tool(words: str, body: Body) -> str | None:
    """Return the tool whose name is quoted, or stands behind the word for it; the longest such name."""
    for name in sorted(names_of_tools(body), key=len, reverse=True):
        pattern = rf"['\"`“]{re.escape(name)}['\"`”]|\b(?:function|tool)s?:? {re.escape(name)}(?![\w-])"
        if name and re.search(pattern, words):
            return name
    return None


def _all_tools(request: ModelRequest, kind: Literal["tool", "tool_schema"], reason: str) -> RefusedPart:
    return RefusedPart(kind=kind, version=list_version(request.head.tools), reason=reason)


# ---- parameters


def _blamed_bound(
    refusal: VendorRefusal, refused: SentRequest, api: RefusableApi, *, is_too_long: bool
) -> Iterator[Sequence[RefusedPart]]:
    """Yield a limit of the answer's length: the stated number, else half of the present one."""
    name = next((name for name in api.bounds if isinstance(refused.body.get(name), int)), None)
    words, max_tokens = refusal.words, refused.request.head.max_tokens
    if name is None:
        return
    value = refused.body[name]
    is_named = any(_names(f"{refusal.parameter} {words}", bound) for bound in api.bounds)
    is_about_length = is_named or (str(value) in words and _ABOUT_OUTPUT.search(words) is not None)
    # An answer of limited length has extra room for reasoning, which may be too much. That is not learned.
    without_room = max_tokens if max_tokens is not None and max_tokens < value else None
    if is_too_long:
        yield [RefusedPart(kind="bound", name=name, limit=without_room)] if without_room else []
        return
    limit = _stated_limit(words, value, refused.body)
    if not is_about_length or not _TOO_LARGE.search(words):
        return
    if limit is not None:
        yield [RefusedPart(kind="bound", name=name, limit=limit, reason=REFUSED)]
    if without_room is not None:
        yield [RefusedPart(kind="bound", name=name, limit=without_room)]
    elif limit is None and value // 2 >= MIN_STATED_LIMIT:
        yield [RefusedPart(kind="bound", name=name, limit=value // 2, reason=REFUSED)]


_ABOUT_OUTPUT = re.compile(
    r"(?:output|completion|max(?:imum)?|new)[ _-](?:\w+ )?tokens|length of the answer", re.IGNORECASE
)
_TOO_LARGE = re.compile(
    r"too (?:large|high|big|many)|exceed|greater|larger|above|at most|maximum|less than|up to|range|[<>]", re.IGNORECASE
)
_MODEL_NAME = re.compile(r"\b[A-Za-z][\w.]*(?:-[\w.]+)+")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?![\w.]*\w)")


def _stated_limit(words: str, value: int, body: Body) -> int | None:
    """Return the largest number in the words that is below the present value.

    >>> _stated_limit("max_tokens: 32000 > 8192, which is the maximum for claude-3-5-haiku-20241022", 32_000, {})
    8192
    """
    text = _MODEL_NAME.sub(" ", words.replace(str(body.get("model", "\0")), " "))
    numbers = (int(number.replace(",", "")) for number in _NUMBER.findall(text) if len(number) < 12)
    return max((number for number in numbers if MIN_STATED_LIMIT <= number < value), default=None)


def _blamed_parameter(
    refusal: VendorRefusal, refused: SentRequest, api: RefusableApi
) -> Iterator[Sequence[RefusedPart]]:
    """Yield the parameter or field that the vendor refuses or demands by name.

    "Missing `reasoning_content`" means the opposite of a refusal, with the same name. The longest name first: a model
    may accept `reasoning`, but not `reasoning.summary`.
    """
    required, missing = refused.parts.required_fields, api.missing_in(refused.body)
    parameters, fields = present_parameters(refused.body, api), api.fields_in(refused.body) - required
    for name in sorted({*parameters, *fields, *missing}, key=lambda name: (-len(name), name)):
        verdict = _verdict(refusal, name, api)
        if verdict == "unsupported" and (name in parameters or name in fields):
            kind: Literal["parameter", "field"] = "parameter" if name in parameters else "field"
            yield [RefusedPart(kind=kind, name=name[:MAX_NAME_CHARS], reason=REFUSED)]
        elif name in missing - required and (
            verdict == "required" or (_is_blamed(refusal, name, api) and _NULL.search(refusal.words))
        ):
            yield [RefusedPart(kind="required", name=name, reason=REFUSED)]


_NULL = re.compile(
    r"\bnull\b|\bNone(?:Type)?\b|(?:should|must) be (?:a )?(?:valid |non-empty )?string|expected (?:a )?string",
    re.IGNORECASE,
)

"""Words about a field that may not be null."""


_DEMAND = re.compile(
    r"\bmissing\b|\brequire[sd]?\b|\bpassed back\b|\bneeds? to be\b"
    r"|\bmust (?!not\b)(?:\w+ )?(?:be (?:passed|sent|set|given|provided|included|present|returned)|have|contain)\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\bun(?:supported|known|recogni[sz]ed|expected)|\bextra\b(?! tokens)|forbidden|\bdeprecated|\bincompatible"
    r"|\bmust be verified|\b(?:not|no longer) (?:\w+ )?(?:supported|permitted|allowed|accepted|available|recogni[sz]ed)"
    r"|\b(?:not|no longer) (?:\w+ )?(?:implemented|enabled)"
    r"|(?:\bnot|n't) (?:support|accept|allow|recogni[sz]e)|\b(?:must|should) not\b|\bcan(?:not|'t) be\b|\bremove\b"
    r"|\b(?:invalid|not a valid) (?:value|parameter|argument|field|property)",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[;\n]|(?<=[.!?])\s|\},\s*\{")
"""Separators of complaints: in sentences, in lists, and in lists as Python prints them."""


def _verdict(refusal: VendorRefusal, name: str, api: RefusableApi) -> Literal["unsupported", "required"] | None:
    """Return what the message says about `name`: the clause with the name counts, or else the whole message."""
    words = refusal.words
    if not _is_blamed(refusal, name, api):
        return None
    complaints = [clause for clause in _CLAUSE_END.split(words) if _names(clause, name)]
    for clause in (*complaints, words):
        if _DEMAND.search(clause):
            return "required"
        if _REFUSAL.search(clause):
            return "unsupported"
    return None


def _is_blamed(refusal: VendorRefusal, name: str, api: RefusableApi) -> bool:
    parameter, words = refusal.parameter, refusal.words
    if parameter and _names(parameter, name):
        return True  # `reasoning.summary`, `include[0]`, `messages[2].reasoning_content`
    if name in api.wordings and api.wordings[name].search(words):
        return True
    # Without a parameter the sentence counts, but a name that is an English word has to be quoted, or be a path.
    is_another = parameter and not parameter.startswith("messages")
    is_a_name = "_" in name or "." in name or re.search(rf"['\"`]{name}['\"`]|\b{name}: |\.{name}\b", words)
    return not is_another and bool(is_a_name) and _names(words, name)


def _names(text: str, name: str) -> bool:
    """Return whether the text has the name; types may stand within a path: `thinking.adaptive.display`."""
    path = r"(?:[.\[]\w+\]?)*\.".join(map(re.escape, name.split(".")))
    return re.search(rf"(?<!\w){path}(?!\w)", text) is not None
