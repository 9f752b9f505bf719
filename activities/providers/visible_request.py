"""What a model is shown of a conversation's attachments (CTX-16).

Before a request is encoded, its attachments become text where they can: every attachment is named below its message's
text, and code and text files follow their name in a fence. Only images and PDFs stay attachments, if the model reads
them; they follow the text in the order of their names. So each API's encoder has to encode nothing but images and PDFs.
What a model is not shown, or can't be, has the reason behind its name.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from turnkeeper.models.bounds import bound_text
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
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest


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
