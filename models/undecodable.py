"""A message that can't be decoded, as its handler gets it (SES-5)."""

from dataclasses import dataclass

from turnkeeper.models.errors import preview


@dataclass(frozen=True)
class UndecodablePayload:
    """A payload with an unknown encoding, or whose data is not what its encoding says. Never valid as a value.

    >>> str(UndecodablePayload(encoding="json/plain", size=7))
    "7 bytes that can't be decoded as 'json/plain'"
    """

    encoding: str
    size: int

    def __str__(self) -> str:
        return f"{self.size:,} bytes that can't be decoded as {preview(self.encoding)}"
