"""The limits of a session (AGT-1, SES-5, SES-6, SES-14 to SES-16), each well within Temporal's own, and other defaults.

Temporal fails a session, or retries a task forever, past 2 MB per payload, 4 MB per gRPC message, and 50 MB or 51,200
events per run. So everything that can grow has a lower bound here. The sizes scale together: a smaller
`max_state_bytes`, for a server with smaller limits, lowers all of them in proportion.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import to_json

from turnkeeper.models.wire import Change, Strict

PROMPT_BYTES = 128 * 1024
"""Maximum of a prompt's text, as UTF-8 (SES-5)."""

ANSWER_BYTES = 200_000
"""Maximum of a model response, as JSON with its large texts by reference; more ends the turn as `too_large`
(SES-16)."""

MAX_WHOLE_ANSWER_BYTES = 1_000_000
"""Maximum of a model response, as JSON with all its texts."""

LARGE_TEXT_BYTES = 8 * 1024
"""A text with more JSON bytes is stored by reference (SES-15)."""

TURN_INLINE_BYTES = 256 * 1024
"""Size of the running turn from which texts over `SMALL_TEXT_BYTES` are stored by reference (SES-15)."""

SMALL_TEXT_BYTES = 512

LARGE_RESULT_BYTES = 120_000
"""Maximum of a tool result, by reference or not: 30,000 characters of four bytes."""

TOOL_LIST_BYTES = 150_000
"""Maximum of a session's tools as JSON, which are carried from run to run."""

MIN_STATE_BYTES = 32_000
"""Minimum of `max_state_bytes`: with less, a new session would already be full."""

MAX_NESTING = 100
"""Maximum levels of lists and objects in a call's arguments and in a tool's schema. JSON readers give up at about 200,
and a session's carried state nests them about ten levels deeper."""

LAST_HISTORY_EVENTS = 40_000
"""Temporal ends a run at 51,200 events or 50 MB; pending activities still need some of them."""

LAST_HISTORY_BYTES = 40_000_000

STEPS_SHOWN = 50
"""How many steps of a running turn queries show, the newest ones (SES-15)."""


class Limits(Strict):
    """Limits of one session. An error names the limit that caused it. Times are in seconds."""

    max_prompt_chars: int = Field(100_000, ge=1, le=100_000)
    """Characters of one prompt, which may also have 128 KB as UTF-8. The session rejects longer ones; their fate says
    why."""
    max_queued_prompts: int = Field(100, ge=1, le=500)
    """Queued prompts at once, as a courtesy: a gateway that has read within 2 s that the queue is full answers 429; it
    reads nothing for that. The session refuses no prompt for want of room: what a run can't carry over is parked in the
    archive and comes back in its order."""
    max_queued_bytes: int = Field(256 * 1024, ge=1_024, le=256 * 1024)
    """Bytes of all queued prompts together, likewise."""
    max_steps: int = Field(50, ge=1, le=1_000)
    """Model calls in one turn."""
    max_tool_calls: int = Field(500, ge=0, le=5_000)
    """Tool calls in one turn."""
    max_parallel_tools: int = Field(8, ge=1, le=64)
    """Tool calls at once."""
    max_tokens_per_turn: int | None = Field(None, ge=1)
    """Tokens read and written by all model calls of one turn, including cached tokens and summaries. Attempts that
    broke off count as reported or as estimated. What the turn's tasks use counts, also after the turn. A turn does not
    continue with a vendor that reports no tokens; `None`: no limit."""
    max_cost_per_turn: float | None = Field(None, gt=0)
    """US dollars for all model calls of one turn, including summaries and attempts that broke off, by list price,
    tasks included as with tokens. A turn does not continue with a model whose price is unknown; `None`: no limit."""
    turn_timeout: float = Field(3_600, ge=1, le=7 * 86_400)
    """Seconds for one turn, without the time that it waits for a person's decision (AGT-8)."""
    approval_timeout: float = Field(86_400, ge=0.1, le=30 * 86_400)
    """Seconds for a person's decision on a tool call; without one the call is rejected."""
    model_timeout: float = Field(600, ge=1, le=86_400)
    """Seconds for one model call."""
    tool_timeout: float = Field(300, ge=1, le=86_400)
    """Seconds for one tool call. A call of an MCP server may take longer if the server reports progress: then it
    counts again from the last report."""
    max_tool_result_chars: int = Field(30_000, ge=200, le=100_000)
    """Characters of a tool's result; longer ones are cut. Those over 8 KB are stored outside the session, which has an
    excerpt."""
    max_task_depth: int = Field(3, ge=0, le=10)
    """How deep tasks may be nested; 0: agents start none (TSK-5)."""
    max_tasks_at_once: int = Field(8, ge=1, le=200)
    """Tasks that a session has started and that have not answered yet."""
    max_tasks: int = Field(25, ge=0, le=200)
    """Tasks that a session and its tasks may start in all, however deep."""
    max_state_bytes: int = Field(1_000_000, ge=4_096, le=1_000_000)
    """Bytes that a session may carry from run to run; its oldest turns move to the archive before that. At least
    32,000 for a new session. Bounds of answers and pages scale with it."""
    max_history_events: int = Field(900, ge=50, le=10_000)
    """Events of a run; beyond it a session continues as new. A worker that takes over a session replays its run first:
    0.20 to 0.27 ms of processor time per event, so that 900 take 2 s on a core that eight processes share (OPS-10)."""
    max_history_bytes: int = Field(4_000_000, ge=20_000, le=10_000_000)
    """Bytes of a run's history; beyond it a session continues as new."""

    @property
    def last_history_events(self) -> int:
        """Events after which a run continues as new even if some prompts can't be carried over (SES-15, SES-16)."""
        return min(LAST_HISTORY_EVENTS, self.max_history_events * 20)

    @property
    def last_history_bytes(self) -> int:
        """The same for the bytes of its history."""
        return min(LAST_HISTORY_BYTES, self.max_history_bytes * 10)

    @property
    def page_bytes(self) -> int:
        """Approximate maximum of a query's answer as JSON (SES-11): over 2 MB Temporal fails the query."""
        return self.max_state_bytes

    @property
    def prompt_bytes(self) -> int:
        """Maximum of a prompt's text, as UTF-8 (SES-5)."""
        return min(PROMPT_BYTES, self.max_state_bytes // 7)

    @property
    def attachments_bytes(self) -> int:
        """Maximum of a prompt's attachments, as JSON: larger contents go by reference (CTX-16)."""
        return min(LARGE_TEXT_BYTES, self.max_state_bytes // 14)

    @property
    def queued_bytes(self) -> int:
        """Maximum of all waiting prompts' texts, as JSON (SES-6)."""
        return min(self.max_queued_bytes, self.max_state_bytes * 27 // 100)

    @property
    def answer_bytes(self) -> int:
        """Maximum of a model response, as JSON (SES-16)."""
        return min(ANSWER_BYTES, self.max_state_bytes // 3)

    @property
    def turn_bytes(self) -> int:
        """Threshold above which a running turn moves its oldest steps to the archive."""
        return self.max_state_bytes // 2

    @property
    def min_turn_bytes(self) -> int:
        """Room that a new turn needs: with less, the session is full (SES-15)."""
        return self.max_state_bytes // 8

    @property
    def archive_above_bytes(self) -> int:
        """Size of the ended turns from which the oldest are moved to the archive, down to half of it (SES-15)."""
        return self.max_state_bytes * 3 // 10

    @property
    def view_bytes(self) -> int:
        """Maximum of the carried model view; beyond it the oldest messages are evicted."""
        return self.max_state_bytes * 15 // 100

    @property
    def small_text_bytes(self) -> int:
        """Maximum of a text, as JSON, that stays inline among many others."""
        return min(SMALL_TEXT_BYTES, self.max_state_bytes // 250)

    @property
    def turn_inline_bytes(self) -> int:
        """Size of the running turn from which texts over `small_text_bytes` go by reference (SES-15)."""
        return min(TURN_INLINE_BYTES, self.max_state_bytes // 3)

    @property
    def ids_bytes(self) -> int:
        """Maximum of the ids a session remembers, as JSON: by default enough for 1,000 of the longest (SES-6)."""
        return self.max_state_bytes * 14 // 100

    @property
    def parked_bytes(self) -> int:
        """Room for references to parked prompts, as JSON: by default enough for 1,000 of the longest (SES-6).

        More of them are carried too, beyond `max_state_bytes`.
        """
        return self.max_state_bytes * 16 // 100

    @property
    def leaving_bytes(self) -> int:
        """Maximum of the carried fates that wait for the archive, as JSON (SES-6)."""
        return self.max_state_bytes * 4 // 100

    @property
    def fates_bytes(self) -> int:
        """Maximum of the fates a session remembers, as JSON (SES-6)."""
        return self.max_state_bytes * 8 // 100

    def inline_bytes(self, turn_bytes: int) -> int:
        """Return the maximum, as JSON, of an inline text in a turn of `turn_bytes`; a longer one goes by reference.

        >>> Limits().inline_bytes(0), Limits().inline_bytes(300_000)
        (8192, 512)
        """
        if turn_bytes < self.turn_inline_bytes:
            return min(LARGE_TEXT_BYTES, self.max_state_bytes // 100)
        return self.small_text_bytes


class LimitsChange(Limits, Change):
    """Limits to change; the others stay as they are."""


DEFAULT_MODEL = "offline:"

DEFAULT_SYSTEM_PROMPT = (
    "You are a careful assistant working in a conversation that can last for months. "
    "Use the tools you are given to look things up rather than guessing, say plainly what you could not do, "
    "and answer briefly."
)

SYSTEM_PROMPT_BYTES = 100_000
"""Maximum of a system prompt, as JSON, since it is carried from run to run."""


def _carriable(system_prompt: str) -> str:
    # `to_json` raises for a lone surrogate; other checks reject it in short texts.
    if len(system_prompt) * 6 > SYSTEM_PROMPT_BYTES and len(to_json(system_prompt)) > SYSTEM_PROMPT_BYTES:
        raise ValueError(f"may have {SYSTEM_PROMPT_BYTES:,} bytes as JSON")
    return system_prompt


SystemPrompt = Annotated[str, Field(max_length=50_000), AfterValidator(_carriable)]

ATTRIBUTE_TYPES: Mapping[str, str] = {
    "AgentSessionStatus": "Keyword",
    "AgentUser": "Keyword",
    "AgentModel": "Keyword",
    "AgentTurns": "Int",
    "AgentTaskParent": "Keyword",
    "AgentTenant": "Keyword",
}
"""The search attributes of sessions, with their types as Temporal's command line has them (SES-17).

`stores/temporal/search_attributes.py` says what they mean, and has them for the SDK."""
