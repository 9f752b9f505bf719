"""Parts of a model request that a vendor refused, and that are left out from then on (AGT-9)."""

from collections.abc import Iterable
from typing import Literal

from turnkeeper.models.wire import Compact

PartKind = Literal[
    "state", "parameter", "bound", "field", "required", "attachment", "images", "pdfs", "tool_schema", "tool"
]
"""Kinds of parts that can be left out of a request:

state         the vendors' own blocks of earlier steps
parameter     an optional parameter of the API, or a field that we add to blocks
bound         nothing is left out: a number is at most `limit`
field         an optional field of messages
required      nothing is left out: a field is added to messages
attachment    an image or a PDF, which is named in text
images, pdfs  all of this kind
tool_schema   a tool is offered with an open schema, and its own as text
tool          a tool
"""

MAX_NAME_CHARS = 200
MAX_TEXTS = 10
"""Parts that are named in one line."""


class RefusedPart(Compact):
    """A part that a model's vendor refused.

    `name` is that of the parameter, the field or the tool, or the id of the content; empty: all of the kind. `version`
    is the digest of the tool, or of the list of tools: a changed one is offered again.
    """

    kind: PartKind
    name: str = ""
    version: str = ""
    limit: int | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the part, independent of limit and reason."""
        return (self.kind, self.name, self.version)

    @property
    def text(self) -> str:
        """The part and why it is left out, for people.

        >>> RefusedPart(kind="tool_schema", name="look", reason="it was refused").text
        'schema of the tool look (it was refused)'
        """
        words = _WORDS[self.kind if self.name else f"all {self.kind}"]
        what = words.format(self.name, f"{self.limit:,}" if self.limit else "")
        return f"{what} ({self.reason})" if self.reason else what


_WORDS = {
    "state": "reasoning of earlier steps",
    "all state": "reasoning of earlier steps",
    "parameter": "parameter {0}",
    "bound": "{0} over {1}",
    "field": "field {0} of messages",
    "required": "messages without {0}",
    "attachment": "attachment",
    "all attachment": "attachments",
    "all images": "images",
    "all pdfs": "PDFs",
    "tool_schema": "schema of the tool {0}",
    "all tool_schema": "schemas of the tools",
    "tool": "tool {0}",
    "all tool": "tools",
}


def left_out_text(parts: Iterable[RefusedPart]) -> str:
    """Return one line that says what was left out and why; empty without parts.

    >>> left_out_text([RefusedPart(kind="tool", name="look", reason="it was refused"), RefusedPart(kind="images")])
    'Left out for this model: tool look (it was refused); images'
    """
    texts = list(dict.fromkeys(part.text for part in parts))
    more = f"; and {len(texts) - MAX_TEXTS} more" if len(texts) > MAX_TEXTS else ""
    return f"Left out for this model: {'; '.join(texts[:MAX_TEXTS])}{more}" if texts else ""
