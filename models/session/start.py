"""The start of a session from outside: what is accepted of the workflow's argument (SES-4, SES-10)."""

import re

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import split_model
from turnkeeper.models.session.messages import USER_PATTERN, SessionInput, check_limits, parse
from turnkeeper.models.session.session import check_features, used_parts

MAX_START_BYTES = 1_500_000
"""Maximum of a start, as JSON: at 2 MB Temporal fails the workflow task."""


def read_start(raw: object, *, extra_arguments: int) -> SessionInput:
    """Parse the workflow's argument. Raises `RejectedError` naming the field (SES-4)."""
    if extra_arguments:
        raise RejectedError("invalid", "A session is started with one JSON object, or nothing.")
    return parse(SessionInput, raw)


def check_outside_start(start: SessionInput) -> None:
    """Check a start that continues no run: it brings no state. Raises `RejectedError` naming the field (SES-10)."""
    if start.carried is not None:
        raise RejectedError(
            "invalid", "carried: only the run before brings it. To copy a session, import or fork it.", field="carried"
        )
    split_model(start.model)
    check_limits(start.limits)
    if start.user is not None and re.fullmatch(USER_PATTERN, start.user) is None:
        raise RejectedError(
            "invalid", "user: letters, digits, space and ' . _ @ + ~ - are allowed, 64 at most.", field="user"
        )
    if start.title is not None and not 1 <= len(start.title) <= 120:
        raise RejectedError("invalid", "title: 1 to 120 characters are allowed.", field="title")
    check_features(start.features)
    for part in used_parts():
        part.check_start(start)
    size = len(start.model_dump_json().encode())
    if size > MAX_START_BYTES:
        raise RejectedError("invalid", f"The input has {size:,} bytes of JSON; {MAX_START_BYTES:,} are allowed.")
