"""Codes and wordings by which vendors refuse images and documents (AGT-4).

They count only for requests with images or documents in them. The words were seen in vendors' documentation, in their
servers' code, and in reports of their users.
"""

import re

from turnkeeper.activities.providers.errors.vendor_words import IMAGE_CODES, words
from turnkeeper.activities.providers.protocol import AttachmentProblem, AttachmentRefusal

_NOTHING: frozenset[str] = frozenset()


_NO = r"(?:not|n't|no longer) (?:\w+ )?(?:support(?:ed|s)?|accept(?:ed|s)?|allow(?:ed|s)?|enabled|available|handle)"

_OF_FILES = r"(?: (?:inputs?|content|data|uploads?|parts?|blocks?|types?|attachments?))"

PROBLEMS: dict[AttachmentProblem, tuple[frozenset[str], re.Pattern[str]]] = {
    "too_large": (
        frozenset({"request_too_large", "request_body_too_large_after_decoding"}),
        words(
            r"request exceeds the maximum (?:allowed )?size|request (?:entity|body) (?:is )?too large",
            r"payload (?:is )?too large|total (?:image|file|media) (?:size|payload)",
        ),
    ),
    "too_many": (
        frozenset({"too_many_images"}),
        words(
            r"too many (?:images|documents|files|pdfs)|at most [1-9]\d* (?:image|video|audio|document|file)",
            r"maximum (?:number )?of (?:\d+ )?(?:images|documents|files)",
        ),
    ),
    "unreadable": (
        frozenset(
            {
                *IMAGE_CODES,
                "sanitizer_server_error",
                "invalid_file",
                "unsupported_file",
            }
        ),
        words(
            # Anthropic, and Claude elsewhere
            r"could not (?:process|read|decode|parse) (?:the |this |an )?(?:image|pdf|document|file)",
            r"(?:image|pdf|document) exceeds|image dimensions exceed|many-image requests",
            r"image was specified using the|image does not match the provided media type",
            r"(?:image|document)\.source\.|maximum of \d+ (?:pdf )?pages|too many pages",
            r"pdf (?:specified )?(?:was not|is not|isn't) valid|password[- ]protected|invalid pdf|pdf .{0,40}encrypted",
            r"unable to download the (?:file|image)|only https urls are supported",
            r"all content must be type `?text`? if `?is_error",
            # OpenAI
            r"uploaded an unsupported image|not represent a valid image|invalid base64|image data .{0,40}not valid",
            r"(?:error|timeout|failed) (?:while |to )?download(?:ing)? (?:the )?(?:image|file|pdf|'?https?:)",
            r"failed to (?:fetch|load) (?:the )?image",
            r"invalid mime type|unsupported (?:image|file|mime)[ _](?:type|format|media)|invalid file data",
            r"invalid (?:image|data) url|invalid 'input.{0,80}(?:image_url|file_data)'",
            # vLLM, llama.cpp, Ollama, LM Studio, Gemini, Mistral
            r"cannot identify image file|image file is truncated",
            r"failed to (?:decode|process|parse|open) (?:the )?(?:image|file|input image)|invalid image|illegal base64",
            r"image: unknown format|unable to process input image|provided image is not valid",
            r"unexpected role '?user'? after role '?tool",
        ),
    ),
    "no_images": (
        _NOTHING,
        words(
            r"image_url is only supported|unknown variant `?(?:image_url|image|input_image)|unknown part type: image",
            r"at most 0 image",
            rf"(?<![\w.-])image(?:s|_url| inputs?| content| understanding)?['\"`]?(?: \w+){{0,3}} (?:is |are )?{_NO}",
            rf"{_NO} (?:\w+ ){{0,2}}`?(?:image|vision|multi-?modal)",
            r"(?:found|model) that support(?:s)? image|missing data required for image|not a (?:multi-?modal|vision)",
            r"(?:is|are) (?:a )?text[- ]only|not configured with a mmproj|image input modality is not enabled",
            r"does not have vision|invalid content type\W+image",
        ),
    ),
    "no_pdfs": (
        _NOTHING,
        words(
            r"unknown variant `?(?:file|input_file|document)|unknown part type: file|file is only supported",
            rf"(?:pdf|file|document)(?:s|_data)?['\"`]?{_OF_FILES}{{0,2}} (?:is |are )?{_NO}",
            rf"{_NO} (?:\w+ ){{0,2}}`?(?:pdf|file|document)(?![ _-]?search)",
            r"(?:found|model) that support(?:s)? (?:pdf|file)|invalid content type\W+file",
        ),
    ),
    "no_media": (
        _NOTHING,
        words(
            # Servers whose content is nothing but text: Groq, DeepSeek, Ollama, TGI
            r"content(?:'|\")? (?:must|should) be (?:a )?(?:valid )?string|invalid type: sequence, expected a string",
            r"did not match any variant of untagged enum ChatCompletionRequestContent|invalid message format",
            r"unknown (?:content )?(?:part|block) type|content\W+input should be a valid string",
            r"str type expected",
        ),
    ),
}
"""The first match counts."""

_STATUSES = frozenset({400, 413, 415, 422})
"""What a vendor refuses of a request has one of these, or comes within a stream: then the status is below 400."""

_STATUSES_OF_LOCAL_SERVERS = frozenset({500, 501})
"""llama.cpp and Ollama answer with these, but so does a server that is broken: they count with a kind's name."""

_KIND = re.compile(r"image|pdf|document|multi-?modal|vision|mmproj", re.IGNORECASE)

_NO_ENDPOINT = re.compile(r"no endpoints found", re.IGNORECASE)
"""OpenRouter's words, with status 404."""

_LIMIT = re.compile(r"(?:at most|max(?:imum)?(?: number)?(?: is| of|:)?|>|up to) (\d{1,4})\b(?! ?[km]b)", re.IGNORECASE)

_PLACE = re.compile(r"\b(?:messages|input)(?:\.\d+|\[\d+\])(?:[.\[]\w+\]?)*")


def attachment_refusal(
    status: int, codes: frozenset[str], message: str, *, parameter: str = ""
) -> AttachmentRefusal | None:
    """Return what a vendor refuses about a request's images or documents; `None` if the error is about something else.

    `parameter` is the field that the vendor blames.

    >>> attachment_refusal(400, frozenset(), "messages.0.content.1.image.source.base64: Could not process image")
    AttachmentRefusal(problem='unreadable', limit=None, place='messages.0.content.1.image.source.base64')
    >>> attachment_refusal(400, frozenset(), "At most 2 image(s) may be provided in one request.").limit
    2
    >>> attachment_refusal(400, frozenset(), "prompt is too long: 215000 tokens > 200000 maximum")
    """
    problem = _problem(status, codes, message)
    if problem is None:
        return None
    place = _PLACE.search(message) or _PLACE.search(parameter)
    limit = _LIMIT.search(message) if problem == "too_many" else None
    return AttachmentRefusal(problem, limit=int(limit[1]) if limit else None, place=place[0] if place else "")


def _problem(status: int, codes: frozenset[str], message: str) -> AttachmentProblem | None:
    if not _may_refuse(status, message):
        return None
    for problem, (known_codes, wording) in PROBLEMS.items():
        if codes & known_codes or wording.search(message):
            return problem
    return "too_large" if status == TOO_LARGE_STATUS else None


def _may_refuse(status: int, message: str) -> bool:
    if status in _STATUSES_OF_LOCAL_SERVERS:
        return bool(_KIND.search(message))
    return status < 400 or status in _STATUSES or (status == 404 and bool(_NO_ENDPOINT.search(message)))


TOO_LARGE_STATUS = 413
