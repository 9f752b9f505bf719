"""The limits of a session (AGT-1, SES-5, SES-6, SES-14 to SES-16), and what each keeps within Temporal's own.

Temporal ends a session for good, or retries it for ever, past 2 MB a payload, 4 MB a gRPC message and 50 MB or
51,200 events a run; so everything that could grow has a bound here that is reached first.
"""

from pydantic import Field

from models.wire import Strict

PROMPT_BYTES = 128 * 1024
"""Most bytes of one prompt's text as UTF-8 (SES-5)."""

ANSWER_BYTES = 256 * 1024
"""Most bytes of one model response; a longer one ends the turn as `too_large` (SES-16)."""

TURN_INLINE_BYTES = 256 * 1024
"""While a running turn holds less, its tool results are kept whole; beyond it they are cut hard (SES-15)."""

TURN_BYTES = 320 * 1024
"""A turn that holds more ends as `too_large` before its next model call: one answer and its results may come on top."""

MOST_CALLS_OF_A_STEP = 128
"""Most tool calls of one model response: each brings at least `SMALL_RESULT_BYTES` and an outcome line."""

LARGE_RESULT_BYTES = 120_000
"""Most bytes of any tool result: 30,000 characters of four bytes."""

SMALL_RESULT_BYTES = 512
"""What is kept of each tool result once a turn holds `TURN_INLINE_BYTES` (SES-15)."""

PAGE_BYTES = 1_000_000
"""About the most JSON bytes a query answers (SES-11): over 2 MB Temporal fails it."""


class Limits(Strict):
    """Bounds of one session. Every one is named in the error it causes; times are in seconds, sizes as named."""

    max_prompt_chars: int = Field(100_000, ge=1, le=100_000)
    max_queued_prompts: int = Field(100, ge=1, le=500)
    max_queued_bytes: int = Field(256 * 1024, ge=1_024, le=256 * 1024)
    max_steps: int = Field(50, ge=1, le=1_000)
    max_tool_calls: int = Field(500, ge=0, le=5_000)
    max_parallel_tools: int = Field(8, ge=1, le=64)
    turn_timeout: float = Field(3_600, ge=1, le=7 * 86_400)
    model_timeout: float = Field(600, ge=1, le=86_400)
    tool_timeout: float = Field(300, ge=1, le=86_400)
    max_tool_result_chars: int = Field(30_000, ge=200, le=100_000)
    max_state_bytes: int = Field(700_000, ge=4_096, le=700_000)
    max_history_events: int = Field(2_000, ge=50, le=10_000)
    max_history_bytes: int = Field(4_000_000, ge=20_000, le=10_000_000)


def result_allowance(held_bytes: int, calls: int) -> int:
    """Most JSON bytes of content each of `calls` results may bring into a turn that holds `held_bytes`.

    >>> result_allowance(0, 1), result_allowance(0, 4), result_allowance(300_000, 1)
    (120000, 65536, 512)
    """
    fair_share = (TURN_INLINE_BYTES - held_bytes) // max(1, calls)
    return min(LARGE_RESULT_BYTES, max(SMALL_RESULT_BYTES, fair_share))
