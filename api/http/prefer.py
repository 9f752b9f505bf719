"""The header `Prefer` (RFC 7240), of which the gateway supports `respond-async`."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import Depends, Header, Response
from pydantic import WithJsonSchema

RESPOND_ASYNC = "respond-async"
APPLIED_HEADER = "Preference-Applied"

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[^",]+|,|.', re.DOTALL)
"""A quoted string, maybe without an end; text without commas; or a comma."""


def prefers_async(headers: Sequence[str]) -> bool:
    """Return whether `respond-async` is among the preferences. Invalid ones are ignored, as the RFC requires.

    >>> prefers_async(["handling=lenient", 'x="a, b"; y, Respond-Async; wait=10'])
    True
    >>> prefers_async(['x=", respond-async"']), prefers_async(["respond-async=no"]), prefers_async([])
    (False, False, False)
    """
    for preference in _preferences(",".join(headers)):
        name, _, value = preference.partition(";")[0].partition("=")
        # The RFC treats an empty value like none.
        if name.strip().lower() == RESPOND_ASYNC and value.strip() in ("", '""'):
            return True
    return False


def _preferences(text: str) -> Iterator[str]:
    """Yield the parts between commas, except commas within quoted strings."""
    preference: list[str] = []
    for piece in _PIECE.findall(text):
        if piece == ",":
            yield "".join(preference)
            preference = []
        else:
            preference.append(piece)
    yield "".join(preference)


async def get_prefers_async(
    response: Response,
    prefer: Annotated[
        list[str] | None,
        Header(description="`respond-async` (RFC 7240): respond as soon as the prompt is safe; `position` is null."),
        WithJsonSchema({"type": "string"}),  # any value is valid, and the header may be repeated
    ] = None,
) -> bool:
    """Return whether the client prefers not to wait for a receipt. If so, the response says that this was honoured."""
    is_preferred = prefers_async(prefer or [])
    if is_preferred:
        response.headers[APPLIED_HEADER] = RESPOND_ASYNC
    return is_preferred


PrefersAsync = Annotated[bool, Depends(get_prefers_async)]
