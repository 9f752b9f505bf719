"""Holding a request against an SDK's own types."""

from typing import Any


def gone_through(value: Any) -> Any:
    """Return `value` with its lists gone through: those of the SDKs' types are validated only then."""
    if isinstance(value, dict):
        return {key: gone_through(inner) for key, inner in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [gone_through(inner) for inner in value]


def fields_of(typed_dict: Any) -> set[str]:
    """Return the names of all fields of a `TypedDict`, inherited ones too; validation lets other names pass."""
    names = set(typed_dict.__annotations__)
    for base in getattr(typed_dict, "__orig_bases__", ()):
        names |= fields_of(base) if hasattr(base, "__annotations__") else set()
    return names
