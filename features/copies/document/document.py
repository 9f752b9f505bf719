"""The document that a session is exported to, and the order to copy one (SES-18).

The document is one JSON object, which any later version imports. It has the whole transcript and what the model sees of
it. It has nothing that works by itself: no waiting prompts, no allowances, no tools, and no opaque provider state,
which is the vendor's and is never shown (AGT-3).

Its model is public: `docs/export.schema.json` is its JSON schema. New fields have defaults; any other change is a new
`version`, and `read_document` goes on reading the earlier ones.

The order is the input of the workflow `CopySession`; its memo says what is copied.
"""

import json
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.limits import Limits, SystemPrompt
from turnkeeper.models.session.messages import FeatureMessage, ModelName, SessionInput, Title, UserName
from turnkeeper.models.session.tools import ToolNames, ToolPolicy
from turnkeeper.models.transcript.conversation import ConversationMessage, Usage
from turnkeeper.models.wire import Compact, Frozen, Items, UtcDatetime, few_keys

FORMAT = "turnkeeper.session"
VERSION = 1

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""The SHA-256 of a content, in hex."""


class _Part(Frozen):
    """A part of the document; an unknown field is an error.

    `Strict` would name the allowed fields too, but triples the time for a large document.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, value: object) -> object:
        return few_keys(value)


class ExportedConfiguration(_Part):
    """The configuration of the session: what a new session takes too."""

    title: Title | None = None
    user: UserName | None = None
    model: ModelName
    system_prompt: SystemPrompt
    limits: Limits = Limits()
    history: ConversationHistoryConfig = ConversationHistoryConfig()
    tools: ToolNames | None = None
    tool_policy: ToolPolicy = {}
    unattended: bool = False
    workspace: str = ""


class ExportedSession(_Part):
    """The session as it was. Only its configuration is used by an import: the id is that of the original."""

    id: str
    created_at: UtcDatetime
    turn_count: int = Field(ge=0)
    """Of the turns in the document."""
    usage: Usage = Usage()
    running_turn: str | None = None
    """The turn that was running, which the document does not have; null: none was."""
    waiting_prompts: int = Field(0, ge=0)
    """Prompts that were waiting. They are not in the document: the original session processes them."""
    configuration: ExportedConfiguration


class ExportedContext(_Part):
    """What the model sees: the messages as references to turns or in full, the summary, and what was evicted.

    `archived_turns`: how many of the oldest turns no reference needs.
    """

    archived_turns: int = Field(0, ge=0)
    state: ContextState


class ExportedTurn(_Part):
    """A turn with all its steps; texts over 8 KB are in `texts`.

    `archived_steps`: how many of its oldest steps no reference of the context needs.
    """

    number: int = Field(ge=1)
    archived_steps: int = Field(0, ge=0)
    turn: ConversationMessage


class SessionDocument(_Part):
    """An exported session."""

    format: Literal["turnkeeper.session"]
    version: Literal[1]
    exported_at: UtcDatetime
    turnkeeper: str = ""
    """The release that has written the document."""
    session: ExportedSession
    context: ExportedContext | None = None
    """Null for a session that Temporal no longer has: an import makes it from the newest turns."""
    turns: Items[ExportedTurn]
    """All of them, from number 1, oldest first."""
    texts: dict[Hash, str] = {}
    """Large texts, by the hash of their UTF-8."""
    attachments: dict[Hash, str] = {}
    """Contents of attachments as base64, by their hash."""
    missing: Items[Hash] = []
    """Texts and attachments that the original had lost: the turns have excerpts of these texts."""


def schema_text() -> str:
    """Return the JSON schema of the document, as `docs/export.schema.json` has it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SessionDocument.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


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
