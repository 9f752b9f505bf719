"""Base classes of everything that is serialised.

`Frozen` models are values: they are replaced, never changed. `Compact` models are stored in Temporal's history for
months, so their JSON leaves out fields with default values. Only `Strict` models, which people write, reject unknown
keys; the others ignore them, since older and newer code reads the data of running sessions (SES-19).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import eq
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError

from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.errors import preview
from turnkeeper.models.invalid_values import unknown_name

MAX_KEYS = 200
"""Maximum keys of an object that a person writes; ours have under 30. A validator reports every unknown key: with
100,000 of them that would take seconds."""

NO_NUL_PATTERN = r"^[^\u0000]*$"
"""JSON schema pattern: a text without NUL."""

REASON_CHARS = 500
"""Maximum length of a person's reason."""

PERSON_CHARS = 64
"""Maximum length of a person's name."""

NOT_BLANK_PATTERN = r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$"
"""JSON schema pattern: a text without NUL that is not blank."""

Item = TypeVar("Item")

Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose validation stops at the first wrong item: the errors of all of them could take seconds."""

MAX_CARRIED_ITEMS = 50_000
"""Maximum items of any list in a carried state: more than fit in 1 MB. It bounds the time of validation."""


def _as_utc(moment: datetime) -> datetime:
    """Return `moment` in UTC. Raises `ValueError`, not `OverflowError`, outside the years 1 to 9999."""
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("lies outside the years 1 to 9999 in UTC") from error


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_as_utc)]
"""A timezone-aware time, converted to UTC (SES-1)."""


def _storable(text: str) -> str:
    if count_unencodable(text):
        raise ValueError("may not contain NUL or a lone surrogate")
    return text


StorableText = Annotated[str, AfterValidator(_storable)]
"""A text that every database can store and search for."""

Reason = Annotated[
    StorableText,
    Field(max_length=REASON_CHARS),
    WithJsonSchema({"type": "string", "maxLength": REASON_CHARS, "pattern": NO_NUL_PATTERN}),
]
"""Why a person did something, in their own words."""

Person = Annotated[StorableText, Field(max_length=PERSON_CHARS)]
"""The name of the person of a key or token."""


class Frozen(BaseModel):
    """An immutable value, compared by content. Its JSON has every field."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class Strict(Frozen):
    """A value that people write: an unknown key is an error that names it; more than `MAX_KEYS` keys are one error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, value: object) -> object:
        return few_keys(value)

    @model_validator(mode="wrap")
    @classmethod
    def _name_allowed_keys(cls, value: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as error:
            raise _with_allowed_names(error, cls) from None


def few_keys(value: object, *, max_keys: int = MAX_KEYS) -> object:
    """Return `value`. Raises `ValueError` for an object of more than `max_keys`.

    >>> few_keys({"a": 1})
    {'a': 1}
    """
    if isinstance(value, dict) and len(value) > max_keys:
        raise ValueError(f"has {len(value):,} keys; {max_keys:,} are allowed")
    return value


FeatureData = Annotated[dict[str, dict[str, JsonValue]], BeforeValidator(partial(few_keys, max_keys=20))]
"""What belongs to features, by their names, in the form that each one defines itself."""


def _without_defaults(schema: dict[str, Any]) -> None:
    for described in schema["properties"].values():
        described.pop("default", None)


class Change(Strict):
    """A partial update: fields that are set replace those of a value. Only they are serialised.

    Derive it from the value's model and this class.
    """

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    @model_serializer(mode="wrap")
    def _only_set_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = serialise(self)
        return {key: value for key, value in dumped.items() if key in self.model_fields_set}


def _with_allowed_names(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """Return the same error; those about unknown keys of `model` itself list its fields."""
    names = ", ".join(model.model_fields)
    details = error.errors(include_url=False)
    lines = [_with_names(detail, names) for detail in details]
    return ValidationError.from_exception_data(model.__name__, lines, hide_input=True)


def _with_names(detail: ErrorDetails, names: str) -> InitErrorDetails:
    kind, context = detail["type"], detail.get("ctx") or {}
    line = InitErrorDetails(type=kind, loc=detail["loc"], input=detail["input"], ctx=context)
    if kind == "extra_forbidden" and len(detail["loc"]) == 1:
        context = {"reason": unknown_name(names), "allowed": names}
        return {**line, "type": PydanticCustomError("extra_forbidden", "{reason}", context)}
    try:
        PydanticKnownError(kind, context or None)  # type: ignore[arg-type]  # a literal of pydantic's own
    except KeyError:
        return {**line, "type": PydanticCustomError(kind, "{message}", {**context, "message": detail["msg"]})}
    return line


class Compact(Frozen):
    """A value in workflow history: its JSON leaves out fields with default values.

    >>> class Point(Compact):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1).model_dump_json(), Point.model_validate_json('{"x":1}').y
    ('{"x":1}', 0)
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Leave out defaults field by field: a serialiser of the whole model would take four times as long."""
        schema = handler(source)
        fields: Any = handler.resolve_ref_schema(schema)
        while fields["type"] != "model-fields":  # validators are wrapped around it
            fields = fields["schema"]
        for name, field in cls.model_fields.items():
            if not field.is_required():
                fields["fields"][name]["serialization_exclude_if"] = partial(eq, field.get_default())
        return schema


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
