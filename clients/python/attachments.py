"""Files as attachments of prompts (CTX-16)."""

import mimetypes
from base64 import b64encode
from pathlib import Path
from typing import get_args

from turnkeeper.models.transcript.attachments import (
    MAX_ATTACHMENT_BYTES,
    MAX_NAME_CHARS,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
    detect_image_type,
    first_problem,
)

UNKNOWN_TYPE = "application/octet-stream"

LANGUAGES = {
    ".c": "c",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".kt": "kotlin",
    ".php": "php",
    ".py": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".sh": "bash",
    ".sql": "sql",
    ".swift": "swift",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "tsx",
    ".yaml": "yaml",
    ".yml": "yaml",
}
"""The language names of files in code fences."""


def read_attachment(path: Path) -> Attachment:
    """Return a file as an attachment: an image, source code by its suffix, or a file of the type that its name says.

    Raises `OSError`, and `ValueError` for a file that no prompt can have.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path.name} is empty")
    if size > MAX_ATTACHMENT_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes; {MAX_ATTACHMENT_BYTES:,} are allowed")
    attachment = make_attachment(path.name, path.read_bytes())
    if problem := first_problem(attachment):
        raise ValueError(f"{path.name}: {problem[1]}")
    return attachment


def make_attachment(name: str, content: bytes) -> Attachment:
    """Return a file as an attachment of the type that its name and first bytes suggest.

    >>> make_attachment("add.py", b"1 + 1").language, make_attachment("a.csv", b"1,2").media_type
    ('python', 'text/csv')
    """
    name = name[-MAX_NAME_CHARS:]
    data, suffix = b64encode(content).decode(), Path(name).suffix.lower()
    if (image_type := detect_image_type(content)) in get_args(ImageMediaType):
        return ImageAttachment.model_validate({"type": "image", "name": name, "media_type": image_type, "data": data})
    if suffix in LANGUAGES and (text := _text_in(content)) is not None:
        return CodeAttachment(type="code", name=name, language=LANGUAGES[suffix], content=text)
    return FileAttachment(type="file", name=name, media_type=_media_type(name, content), data=data)


def _media_type(name: str, content: bytes) -> str:
    guessed = mimetypes.guess_type(name)[0] or ("text/plain" if _text_in(content) else UNKNOWN_TYPE)
    # Named like code or like an image, but it is neither.
    is_misnamed = Path(name).suffix.lower() in LANGUAGES or guessed in get_args(ImageMediaType)
    return UNKNOWN_TYPE if is_misnamed else guessed


def _text_in(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
