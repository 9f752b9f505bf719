"""Holding what is sent against an SDK's own types. They are slow to load, so they load where a wire begins."""

from functools import cache
from pkgutil import resolve_name
from typing import Any, Self

from pydantic import TypeAdapter

from turnkeeper.testing.vendor_server import VendorServer


@cache
def adapter_of(sdk_type: str) -> TypeAdapter[Any]:
    """Return what validates values of the type, which is named as `package.module:Name`."""
    return TypeAdapter(resolve_name(sdk_type))


def check_request(body: dict[str, Any], typed_dict: str) -> None:
    """Check that the body is a `TypedDict` of an SDK, and has no other fields."""
    gone_through(adapter_of(typed_dict).validate_python(body))
    assert set(body) <= fields_of(resolve_name(typed_dict))


def gone_through(value: Any) -> Any:
    """Return `value` with its lists iterated: the SDKs' lazy lists are validated only then."""
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


class TypedServer(VendorServer):
    """A server that checks requests and events by the SDK's types."""

    sdk_types: tuple[str, ...]
    """Those of a request and of an event, as `package.module:Name`."""

    async def __aenter__(self) -> Self:
        for sdk_type in self.sdk_types:
            adapter_of(sdk_type)  # no request waits for it
        return await super().__aenter__()
