"""Which part of a conversation a task gets: two presets, with every number configurable (CTX-9).

The preset `keep_user` keeps the user's requests and cuts the answers; `keep_assistant` does the opposite.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.wire import Strict

HistoryRole = Literal["user", "assistant", "orchestrator"]
PresetName = Literal["keep_user", "keep_assistant"]

Chars = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=200)]


class TextLimit(Strict):
    """The limits of one message's text, in characters."""

    max_chars: Chars
    """A longer text is cut."""
    kept_chars: Chars | None = None
    """Length of a cut text, from its start; `None`: `max_chars`."""
    marker: str = Field(" ... (truncated)", max_length=200)
    """Appended to a cut text, beyond `kept_chars`; `{n}` becomes the text's original length."""
    hard_limit: Chars | None = None
    """A longer text is an error; `None`: no limit."""

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if self.kept_chars is not None and self.kept_chars > self.max_chars:
            raise ValueError(f"kept_chars={self.kept_chars} is over max_chars={self.max_chars}")
        if self.hard_limit is not None and self.hard_limit < self.max_chars:
            raise ValueError(f"hard_limit={self.hard_limit} is under max_chars={self.max_chars}")
        return self

    def cut(self, text: str) -> str:
        """Return `text`, cut and marked if it is too long.

        >>> TextLimit(max_chars=5, kept_chars=3, marker="... of {n}").cut("abcdef")
        'abc... of 6'
        """
        if len(text) <= self.max_chars:
            return text
        return text[: self.kept_chars or self.max_chars] + self.marker.replace("{n}", str(len(text)))


class HistoryPolicy(Strict):
    """Which part of a conversation a task gets; the default is the preset `keep_user`."""

    roles: tuple[HistoryRole, ...] = Field(("user", "assistant", "orchestrator"), min_length=1, max_length=3)
    """Allowed roles: another one is an error; in an inherited conversation it is skipped."""
    max_messages: Count = 50
    """Only the latest messages, up to this number, are read."""
    user_text: TextLimit = TextLimit(max_chars=8_000, kept_chars=7_900, marker=" ... (truncated, original: {n} chars)")
    other_text: TextLimit = TextLimit(max_chars=150)
    """For assistant and orchestrator."""
    max_total_chars: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 60_000
    """Maximum size of all messages together, after they are cut: beyond it, the oldest are dropped."""
    min_messages: Count = 5
    """Messages that always stay."""

    def text_limit(self, role: HistoryRole) -> TextLimit:
        return self.user_text if role == "user" else self.other_text

    def without_hard_limits(self) -> "HistoryPolicy":
        """Return the policy without hard limits, for an inherited conversation (TSK-1).

        >>> KEEP_ASSISTANT.without_hard_limits().user_text.hard_limit is None
        True
        """
        soft = {"hard_limit": None}
        return self.model_copy(
            update={
                "user_text": self.user_text.model_copy(update=soft),
                "other_text": self.other_text.model_copy(update=soft),
            }
        )


KEEP_USER = HistoryPolicy()
KEEP_ASSISTANT = HistoryPolicy(
    roles=("user", "assistant"),
    user_text=TextLimit(max_chars=150, marker="... [truncated]", hard_limit=300),
    other_text=TextLimit(max_chars=8_192, marker="... [truncated]", hard_limit=16_384),
    max_total_chars=15_360,
)

PRESETS: Mapping[str, HistoryPolicy] = MappingProxyType({"keep_user": KEEP_USER, "keep_assistant": KEEP_ASSISTANT})


def _preset(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise ValueError(f"is none of the presets {', '.join(PRESETS)}")
    return PRESETS[value]


PolicyChoice = Annotated[HistoryPolicy, BeforeValidator(_preset, json_schema_input_type=PresetName | HistoryPolicy)]
"""A policy, or a preset's name."""

_CHOICE = TypeAdapter[HistoryPolicy](PolicyChoice)


def resolve_policy(choice: object) -> HistoryPolicy:
    """Return the policy for a preset's name, a `HistoryPolicy`, or the fields of one.

    Raises `TaskValidationError` naming the first wrong field.

    >>> resolve_policy("keep_assistant").max_total_chars, resolve_policy({"max_messages": 10}).max_messages
    (15360, 10)
    >>> resolve_policy({"user_text": {"max_chars": 0}})
    Traceback (most recent call last):
    turnkeeper...TaskValidationError: history_policy.user_text.max_chars: must be at least 1
    """
    try:
        return _CHOICE.validate_python(choice)
    except ValidationError as error:
        first = error.errors()[0]
        field, reason = field_path(["history_policy", *first["loc"]]), reason_of(first)
        raise TaskValidationError(field, reason, preview(first["input"]), "invalid_value") from error
