"""Base classes of everything that is serialised, and reasons why a value is invalid.

`Frozen` models are values: they are replaced, never changed. `Compact` models are stored in Temporal's history for
months, so their JSON leaves out fields with default values. Only `Strict` models, which people write, reject unknown
keys; the others ignore them, since older and newer code reads the data of running sessions (SES-19).

This is the one place that reads pydantic's errors (API-2, OPS-4). A reason follows the name of its field:
`limits.max_steps: must be at least 1`. It says what is allowed and never repeats the value.

An `AsOf` says which workflow task the answer to a query comes from (SES-12). A worker can answer from a workflow task
that it never completes: it dies, another worker repeats the task, and times in the state change. A reader that must not
show such a state looks for the task's completion in the history.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError

from turnkeeper.models.errors import TaskErrorType, preview
from turnkeeper.models.ids import CALL_ID_PATTERN, ID_PATTERN, ID_RULE
from turnkeeper.models.texts import count_unencodable, counted

_PATTERNS = {ID_PATTERN: ID_RULE, CALL_ID_PATTERN: "a call's id, as turn.step.index"}
"""Patterns in words."""

_KINDS = {
    "bool_": "true or false",
    "bytes_": "a string",
    "date_": "a date, as 2026-11-22",
    "datetime_": "a date and time, as 2026-11-22T10:00:00Z",
    "dict_": "an object",
    "finite_number": "a finite number",
    "float_": "a number",
    "int_": "a whole number",
    "list_": "a list",
    "model_": "an object",
    "none_": "null",
    "set_": "a list",
    "string_type": "a string",
    "string_sub_type": "a string",
    "timezone_aware": "a date and time with its time zone, as 2026-11-22T10:00:00Z",
    "tuple_": "a list",
    "url_": "an address, as https://example.org",
}
"""The expected kind of value, by the prefix of pydantic's error type: `int` stands for `int_parsing` and `int_type`."""

Context = Mapping[str, Any]


def reason_of(error: Mapping[str, Any]) -> str:
    """Return the reason for one item of `ValidationError.errors()`.

    >>> reason_of({"type": "int_parsing", "msg": "Input should be a valid integer, unable to parse …"})
    'must be a whole number'
    >>> reason_of({"type": "literal_error", "msg": "…", "ctx": {"expected": "'user' or 'assistant'"}})
    'must be "user" or "assistant"'
    >>> reason_of({"type": "string_too_long", "msg": "…", "ctx": {"max_length": 1000}})
    'may have at most 1,000 characters'
    >>> reason_of({"type": "value_error", "msg": "Value error, is blank"})
    'is blank'
    """
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _REASONS:
        return _REASONS[kind](context)
    expected = next((value for prefix, value in _KINDS.items() if kind.startswith(prefix)), None)
    if expected is not None:
        return f"must be {expected}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return message[:1].lower() + message[1:] if message.startswith("Input") else message


def error_type_of(error: Mapping[str, Any]) -> TaskErrorType:
    """Return the kind of one item of `ValidationError.errors()`, for programs (TSK-1).

    >>> [error_type_of({"type": kind}) for kind in ("missing", "int_parsing", "bool_type", "string_too_long")]
    ['missing_field', 'type_error', 'type_error', 'invalid_value']
    """
    kind = str(error["type"])
    if kind in ("missing", "union_tag_not_found"):
        return "missing_field"
    return "type_error" if kind.endswith(("_type", "_parsing")) else "invalid_value"


def unknown_name(allowed: str) -> str:
    """Return the reason for an unknown field; `allowed` lists the known ones."""
    return f"unknown field (allowed: {allowed or 'none'})"


def _pattern(context: Context) -> str:
    pattern = str(context["pattern"])
    if pattern.startswith("^https?://"):
        return f"must be {_KINDS['url_']}"
    return f"must be {_PATTERNS[pattern]}" if pattern in _PATTERNS else f"must match {pattern}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _quoted(names: Any) -> str:
    return str(names).replace("'", '"')


def _tags(context: Context) -> str:
    *names, last = _quoted(context["expected_tags"]).split(", ")
    expected = f"{', '.join(names)} or {last}" if names else last
    return f"{_discriminator(context)} must be {expected}"


def _discriminator(context: Context) -> str:
    return str(context["discriminator"]).strip("'")


_REASONS: dict[str, Callable[[Context], str]] = {
    "missing": lambda context: "is required",
    "extra_forbidden": lambda context: unknown_name(context["allowed"]) if "allowed" in context else "unknown field",
    "string_pattern_mismatch": _pattern,
    "string_too_short": lambda context: f"must have at least {counted(context['min_length'], 'character')}",
    "string_too_long": lambda context: f"may have at most {counted(context['max_length'], 'character')}",
    "string_unicode": lambda context: "must be valid Unicode",
    "too_short": lambda context: f"must have at least {counted(context['min_length'], 'item')}",
    "too_long": lambda context: f"may have at most {counted(context['max_length'], 'item')}",
    "greater_than": lambda context: f"must be over {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"must be at least {_number(context['ge'])}",
    "less_than": lambda context: f"must be under {_number(context['lt'])}",
    "less_than_equal": lambda context: f"must be at most {_number(context['le'])}",
    "literal_error": lambda context: f"must be {_quoted(context['expected'])}",
    "enum": lambda context: f"must be {_quoted(context['expected'])}",
    "union_tag_invalid": _tags,
    "union_tag_not_found": lambda context: f"{_discriminator(context)} is required",
    "json_invalid": lambda context: "is not valid JSON",
}


MAX_NAME_CHARS = 64
"""As long as a hash."""

_TAGS = {"attachments": frozenset({"code", "image", "file"}), "steps": frozenset({"model", "user"})}
"""The union members that validation adds to the path of a list's item, by the list's name."""


def field_path(location: Iterable[int | str]) -> str:
    r"""Return the path of a field, with indexes in brackets; empty for the whole input.

    Keys are the caller's: those that are not printable ASCII are escaped, since a lone surrogate could not be sent
    back, and long ones are cut.

    >>> field_path(["history_policy", "roles", 0]), field_path([0, "role"]), field_path([])
    ('history_policy.roles[0]', '[0].role', '')
    >>> field_path(["tool_policy", "pay\n\ud800"])
    'tool_policy.pay\\n\\ud800'
    >>> field_path(["attachments", 1, "image", "data"])
    'attachments[1].data'
    >>> field_path(["steps", 0, "model", "model"]), field_path(["messages", 0, "user"])
    ('steps[0].model', 'messages[0].user')
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in _without_tags(location))
    return "".join(parts).removeprefix(".")


def _without_tags(location: Iterable[int | str]) -> Iterator[int | str]:
    parts = list(location)
    for index, part in enumerate(parts):
        is_in_item = index >= 2 and isinstance(parts[index - 1], int)
        if not (is_in_item and part in _TAGS.get(str(parts[index - 2]), ())):
            yield part


def _name(key: str) -> str:
    is_plain = key.isascii() and key.isprintable()
    return (key if is_plain else ascii(key)[1:-1])[:MAX_NAME_CHARS]


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


# ---- the workflow task of an answer

FORGET_QUERY = "forget_session"
"""The query that makes a worker evict a session whose state depends on a task that was undone."""


class WorkflowTaskStart(Frozen):
    """A workflow task, by the time of the event that started it, to the microsecond.

    The time differs between attempts of a task; the event's id does not. `history_length` counts the run's events that
    the worker had. It includes events after the task if the worker replayed the session for a query. 0: unknown.
    """

    started_at: UtcDatetime
    history_length: int = 0


class AsOf(Frozen):
    """The workflow tasks that a state depends on, beyond what the worker has replayed from the history."""

    run_id: str
    first_run_id: str = ""
    """The run that the session began with: another session can have the same id later."""
    task: WorkflowTaskStart
    """The last one that changed the session."""
    earlier_tasks: tuple[WorkflowTaskStart, ...] = ()
    """Earlier tasks after which this worker answered a query, and which it did not replay; `task` builds on them."""
    is_replayed: bool = False
    """The worker has only replayed the session: Temporal doesn't know that it has the session in memory."""

    @property
    def tasks(self) -> tuple[WorkflowTaskStart, ...]:
        return (*self.earlier_tasks, self.task)


Stamp = Annotated[SkipJsonSchema[AsOf | None], Field(exclude_if=lambda as_of: as_of is None)]
"""The field `as_of` of an answer. The gateway checks it and drops it; it is absent from JSON rather than null."""
