"""Which part of a conversation a task gets: two presets, with every number configurable (CTX-9, CTX-15).

The preset `keep_user` keeps the user's requests and cuts the answers; `keep_assistant` does the opposite. An operator
may set both presets (`hand_off` in the settings). A task names one, or gives the fields in which it differs from
`keep_user`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.texts import count_unencodable
from turnkeeper.models.wire import Strict, field_path, reason_of

HistoryRole = Literal["user", "assistant", "orchestrator"]
PresetName = Literal["keep_user", "keep_assistant"]

Chars = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=200)]

MAX_RANKED = 2_000
"""Only the latest messages, up to this number, are read where they are ranked."""

MAX_QUERY_CHARS = 20_000


def _check_query(value: object) -> bool | str:
    if isinstance(value, bool | None):
        return bool(value)
    if not isinstance(value, str) or len(value) > MAX_QUERY_CHARS or count_unencodable(value):
        raise ValueError(f"must be true, false or a text of at most {MAX_QUERY_CHARS:,} characters")
    return value


RelevantTo = Annotated[
    bool | str,
    PlainValidator(
        _check_query, json_schema_input_type=bool | Annotated[str, Field(max_length=MAX_QUERY_CHARS)] | None
    ),
]


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
    compress: Literal["truncate", "summarise"] = Field("truncate", exclude_if=lambda compress: compress == "truncate")
    """`summarise`: the model condenses texts over their limit when the task starts; if it can't, they are cut."""
    relevant_to: RelevantTo = Field(False, exclude_if=lambda relevant_to: relevant_to is False)
    """Only the exchanges that matter to this text are handed off, with the first and the last one; `true`: to the
    task's description; `false` or blank: all are."""
    min_relevance: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = Field(
        0.3, exclude_if=lambda min_relevance: min_relevance == 0.3
    )
    """From 0 to 1, the relevance of the best match: an exchange of less is left out."""

    @property
    def ranks(self) -> bool:
        """Whether messages are left out by their relevance."""
        return self.relevant_to is True or (isinstance(self.relevant_to, str) and bool(self.relevant_to.strip()))

    @property
    def max_read(self) -> int:
        """How many messages are read, the latest: by relevance, earlier ones may stay too."""
        return MAX_RANKED if self.ranks else self.max_messages

    def query(self, description: str) -> str:
        """Return the text that messages are compared with."""
        return self.relevant_to if isinstance(self.relevant_to, str) else description

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


def _over(preset: HistoryPolicy) -> BeforeValidator:
    """Return a validator that fills in what is not set from `preset`, also in the limits of texts."""

    def fill_in(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        merged: dict[str, Any] = preset.model_dump()
        for name, change in _read_variables(value).items():
            earlier = merged.get(name)
            if isinstance(earlier, dict) and isinstance(change, Mapping):
                merged[name] = {**earlier, **_read_variables(change)}
            else:
                merged[name] = change
        return merged

    return BeforeValidator(fill_in, json_schema_input_type=HistoryPolicy)


def _read_variables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with numbers and booleans, which are texts in environment variables.

    >>> _read_variables({"max_chars": "100", "marker": "1", "relevant_to": "true", "compress": "summarise"})
    {'max_chars': 100, 'marker': '1', 'relevant_to': True, 'compress': 'summarise'}
    """
    is_text = {name: isinstance(value, str) and name != "marker" for name, value in fields.items()}
    return {name: _read_variable(value) if is_text[name] else value for name, value in fields.items()}


def _read_variable(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:
        return text


class HandOffPresets(Strict):
    """The presets, as an operator has set them; the rest of a preset is as we have it."""

    keep_user: Annotated[HistoryPolicy, _over(KEEP_USER)] = KEEP_USER
    """Of tasks that name no other, and of policies that leave a field out."""
    keep_assistant: Annotated[HistoryPolicy, _over(KEEP_ASSISTANT)] = KEEP_ASSISTANT

    def resolve(self, policy: HistoryPolicy) -> HistoryPolicy:
        """Return what a task's `policy`, as `PolicyChoice` reads it, means under these presets.

        >>> presets = HandOffPresets.model_validate({"keep_user": {"max_messages": 20}})
        >>> presets.resolve(resolve_policy("keep_user")).max_messages
        20
        >>> presets.resolve(resolve_policy({"max_total_chars": 9_000})).max_messages
        20
        """
        if policy == KEEP_ASSISTANT:
            return self.keep_assistant
        return self.keep_user.model_copy(update={name: getattr(policy, name) for name in policy.model_fields_set})


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
