"""The context view of a session: what the model still sees of each turn (CTX-8)."""

from typing import Literal

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.transcript.model_call import ServerText
from turnkeeper.models.wire import Frozen

Seen = Literal["verbatim", "truncated", "summarised", "refused", "retried", "not_at_all"]
"""How the model sees a turn.

`truncated`: some of its messages, or parts of them; `summarised`: in the summary only; `refused`: replaced by a note,
since the model's vendor refused it (CTX-7); `retried`: replaced by its retry (CTX-17).
"""


class TurnInContext(Frozen):
    """One turn of the transcript, `number` from 1. The id is null if the turn is in the archive and not in the view."""

    number: int
    message_id: str | None = None
    seen: Seen
    estimated_tokens: int = 0
    """Total for the messages that the model sees."""
    characters_cut: int = 0
    """Characters of a truncated, refused or retried turn that the model no longer sees.

    Those of some scripts count several times, as in the estimate of tokens.
    """


class FixedPart(Frozen):
    """The part of every request before the messages."""

    system_prompt_tokens: int
    tools: list[str]
    tools_not_offered: list[str] = []
    """The `tools` that the model is not offered, since its API has a limit."""
    tools_tokens: int
    estimated_tokens: int


class SummaryInContext(Frozen):
    """The summary of evicted messages. `turns` are inclusive ranges of turn numbers."""

    text: str
    turns: list[tuple[int, int]]
    files_written: list[str]
    estimated_tokens: int


class ContextView(Frozen):
    """The model's current view. Tokens are estimates, within about 20 % (CTX-6).

    `turns` are oldest first; with `has_more` there are older ones: ask again with `before` set to the first number.
    """

    segment: int
    message_count: int
    max_messages: int
    """The present cap of the window; 0: none."""
    max_tokens: int | None = None
    """The maximum that is sent, with the fixed part, learned from an overflow; null: no limit.

    It is for this model and this configuration of the window (CTX-7).
    """
    estimated_tokens: int
    """Total for the whole request, with the fixed part."""
    reported_tokens: int | None = None
    """The same by the vendor's count at the last call of this segment, plus an estimate of later messages."""
    fixed: FixedPart
    summary: SummaryInContext | None = None
    messages_awaiting_summary: int = 0
    summaries_failed: int = 0
    messages_given_up: int = 0
    """Evicted messages that will be in no summary, since too many were waiting for one."""
    absent_tool_servers: list[ServerText] = []
    """Servers whose tools the model does not have, or only as they were, and why."""
    turns: list[TurnInContext]
    has_more: bool
    as_of: Stamp = None
