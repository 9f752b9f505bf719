"""The two base classes of everything that crosses a boundary.

`Frozen` models are values: they are replaced, never changed. `Compact` models travel inside Temporal's history,
where every byte is kept for months: fields that hold their default are left out of the JSON and come back when it
is read. Both refuse unknown keys only where a person writes them (`Strict`); what older or newer code wrote is read
leniently, since these models are public API of running sessions (SES-19).
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
)


def _as_utc(moment: datetime) -> datetime:
    """Raise `ValueError`, not `OverflowError`, for moments whose UTC lies before year 1 or after year 9999."""
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("lies outside the years 1 to 9999 in UTC") from error


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_as_utc)]
"""A timezone-aware moment, kept in UTC (SES-1)."""


class Frozen(BaseModel):
    """A value: compared by content, replaced and never changed in place."""

    model_config = ConfigDict(frozen=True)


class Strict(Frozen):
    """A value that people write by hand: an unknown key is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Compact(Frozen):
    """A value in workflow history: fields that hold their default take no bytes.

    >>> class Point(Compact):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1).model_dump_json(), Point.model_validate_json('{"x":1}').y
    ('{"x":1}', 0)
    """

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        dumped: dict[str, Any] = serialise(self)
        return {
            key: value
            for key, value in dumped.items()
            if key not in fields or fields[key].is_required() or getattr(self, key) != fields[key].get_default()
        }
