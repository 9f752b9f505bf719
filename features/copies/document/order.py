"""Copying a session: the input of the workflow `CopySession`, and what its memo says (SES-18)."""

from pydantic import Field

from turnkeeper.features.copies.document.document import Hash
from turnkeeper.models.session.messages import FeatureMessage, SessionInput
from turnkeeper.models.wire import Compact, Items, UtcDatetime

COPY = "copy"
"""Key of the memo of a session that is or was a copy; its value is a `CopyMemo`."""


SNAPSHOT = FeatureMessage(feature="copies", kind="snapshot")
"""Asks a session what a copy of it is made of: the argument of the query of features."""


class ForkSource(Compact):
    """The original of a fork, and the number of the last turn that is copied."""

    session: str
    """With its tenant."""
    first_run_id: str
    """Of the original; empty: Temporal no longer has it."""
    turn: int = Field(ge=1)


class CopyOrder(Compact):
    """What to copy into the new session: the first turns of another one, or a document."""

    start: SessionInput
    """The new session's configuration."""
    fork: ForkSource | None = None
    document: Hash | None = None
    """SHA-256 of the document, which is stored while the workflow waits."""
    parts: Items[Hash] = []
    """Its parts in the store, in order; the workflow adds them once they are there."""


class StoredDocument(Compact):
    """The document is stored, in these parts."""

    parts: Items[Hash]


class FailedCopy(Compact):
    """Why a copy has failed, and the ids of the prompts that waited for its session."""

    reason: str
    at: UtcDatetime
    prompts: Items[str] = []


class CopyMemo(Compact):
    """What a copy is made of. `key` identifies it: the same request again is the same copy."""

    key: str
    turn_count: int
    forked_from: str | None = None
    """The original's id without its tenant; `None`: the copy is an import."""
    message_id: str | None = None
    """The id of a fork's last turn."""
