"""The reasons why models stop, of all servers, and whether the answer is complete (AGT-9).

An answer is complete only if its reason is known to mean that. At a length limit it is cut. Every other reason is an
error, so that an incomplete answer is never used.
"""

import re

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.models.errors import ErrorType

_COMPLETE = re.compile(
    r"stop(?:_sequence|_token)?|end(?:_turn)?|eos(?:_token)?|completed?|finished|tool_calls?|tool_use|function_call"
)
_CUT = re.compile(r"(?:max_|model_)?length|max_(?:output_|completion_|new_)?tokens|(?:token|output)_limit")
_BOTCHED_CALL = re.compile(r"malformed|unexpected_tool_call")
"""The model wrote a malformed call (Gemini's `function_call_filter: MALFORMED_FUNCTION_CALL`), which is no refusal."""
_AT_THE_END_OF_THE_CONTEXT = re.compile(r"context_(?:window|length|size)")
_REFUSED = re.compile(
    r"^(?:content|function_call)_?filter|filtered$|sensitive|safety|prohibited|guardrail|recitation|refus|blocklist"
    r"|spii|moderation|policy|unsafe|flagged"
)
_FAILED: dict[str, ErrorType] = {
    "error": "provider_error",
    "abort": "provider_error",
    "aborted": "provider_error",
    "network_error": "provider_error",
    "insufficient_system_resource": "overloaded",
    "time_limit": "timeout",
    "timeout": "timeout",
}
"""Failures at the server, which may succeed when retried."""


def is_length_limit(reason: str, *, vendor: str) -> bool:
    """Return whether an answer was cut at a length limit; otherwise it is complete.

    Raises `ModelError` for every other reason: a refusal, a failure, the end of the context, an unknown reason.

    >>> is_length_limit("STOP", vendor="Acme"), is_length_limit("max_tokens", vendor="Acme")
    (False, True)
    >>> is_length_limit("content_filter: SAFETY", vendor="Acme")
    Traceback (most recent call last):
    ...
    turnkeeper...ModelError: Acme stopped the answer with “content_filter: SAFETY”
    """
    code = reason.strip().lower().replace("-", "_").replace(" ", "_")
    if _COMPLETE.fullmatch(code) or _CUT.fullmatch(code):
        return _CUT.fullmatch(code) is not None
    quoted_reason = f"“{redact(reason)}”"
    if _AT_THE_END_OF_THE_CONTEXT.search(code):
        raise ModelError("context_too_long", f"the answer reached the end of the model's context, {quoted_reason}")
    if _BOTCHED_CALL.search(code):
        raise unclear_answer_error(
            f"{vendor} ended its answer with {quoted_reason}: the model wrote no proper call", vendor=vendor
        )
    if _REFUSED.search(code):
        raise ModelError("refusal", f"{vendor} stopped the answer with {quoted_reason}")
    if code in _FAILED:
        raise ModelError(_FAILED[code], f"{vendor} ended its answer with {quoted_reason}", vendor=vendor)
    raise unclear_answer_error(
        f"{vendor} ended its answer with {quoted_reason}, which is not known to end a complete answer", vendor=vendor
    )


def unclear_answer_error(message: str, *, vendor: str) -> ModelError:
    """Return the error of an answer that may be incomplete."""
    return ModelError("provider_error", message, vendor=vendor, lasting=UNCLEAR_ANSWER)


EARLY_END = "early end"
"""Marks answers that end before they are complete, although the connection was not lost."""

UNCLEAR_ANSWER = "unclear answer"
"""Marks all answers that may be incomplete as the same failure: each is billed, and the next may end like it."""
