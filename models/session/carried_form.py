"""The JSON form of a carried state: writes the present form, reads every form that was ever written (SES-14, SES-19).

The present form is `{"state": …}` with the nested parts of `CarriedState`. Earlier releases wrote one flat object with
the fields in `FLAT_FIELDS`; only this module knows that form.

A worker of such a release must neither lose nor end a session in the present form. It ignores `state`, which it does
not know, and fails the workflow task because of a reference to a missing turn. Temporal retries the task until a worker
of a newer release gets it (docs/decisions/0040).
"""

from typing import Any

from pydantic import SerializerFunctionWrapHandler

FLAT_FIELDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("created_at",): ("created_at",),
    ("revision",): ("revision",),
    ("request_count",): ("request_count",),
    ("usage",): ("usage",),
    ("ending",): ("ending",),
    ("default_rules",): ("default_rules",),
    ("running",): ("running",),
    ("moved_events",): ("moved_events",),
    ("turns",): ("transcript", "turns"),
    ("archived_count",): ("transcript", "archived"),
    ("steering",): ("queue", "row", "steering"),
    ("waiting",): ("queue", "row", "waiting"),
    ("queue", "parked"): ("queue", "row", "parked"),
    ("queue", "behind"): ("queue", "row", "behind"),
    ("queue", "next_number"): ("queue", "row", "next_number"),
    ("queue", "forgotten"): ("queue", "row", "forgotten"),
    ("queue", "leaving"): ("queue", "leaving"),
    ("taken_ids",): ("queue", "taken_ids"),
    ("fates",): ("queue", "fates"),
    ("view",): ("context", "view", "entries"),
    ("segment",): ("context", "view", "segment"),
    ("context", "waiting"): ("context", "waiting"),
    ("context", "evicted_since"): ("context", "evicted_since"),
    ("context", "summaries_failed"): ("context", "summaries_failed"),
    ("context", "given_up"): ("context", "given_up"),
    ("context", "cut"): ("context", "cut"),
    ("context", "halved"): ("context", "halved"),
    ("context", "limit"): ("context", "limit"),
    ("context", "reported"): ("context", "reported"),
    ("limit_warned",): ("context", "limit_warned"),
    ("tools",): ("tools", "specs"),
    ("tools_segment",): ("tools", "segment"),
    ("tools_due_turn",): ("tools", "due_turn"),
    ("tools_read_turn",): ("tools", "read_turn"),
    ("allowances",): ("tools", "allowances"),
    ("archive",): ("archive", "report"),
    ("archive_again_at",): ("archive", "again_at"),
}
"""Paths in the flat form to paths in the nested one; for `turn_count` see `_check_turn_count`."""

FOR_EARLIER_RELEASES = {
    "created_at": "1970-01-01T00:00:00Z",
    "revision": 0,
    "view": [{"turn": "A newer release has handed this session over: start its workers again."}],
}
"""What a worker of an earlier release reads; it then fails the workflow task."""


def write_carried(state: object, serialise: SerializerFunctionWrapHandler) -> dict[str, object]:
    return {**FOR_EARLIER_RELEASES, "state": serialise(state)}


def read_carried(carried: object) -> object:
    """Return the nested form of a carried state in any form. Raises `ValueError`.

    >>> read_carried({"state": {"revision": 7}}), read_carried({"revision": 7, "archived_count": 2, "turn_count": 2})
    ({'revision': 7}, {'revision': 7, 'transcript': {'archived': 2}})
    """
    if not isinstance(carried, dict):
        return carried
    return carried["state"] if "state" in carried else _nested(carried)


def _nested(flat: dict[str, object]) -> dict[str, object]:
    _check_turn_count(flat)
    nested: dict[str, object] = {}
    for (*flat_parts, flat_name), (*parts, name) in FLAT_FIELDS.items():
        source = _read_part(flat, flat_parts)
        if flat_name in source:
            _ensure_part(nested, parts)[name] = source[flat_name]
    return nested


def _read_part(whole: dict[str, object], names: list[str]) -> dict[str, object]:
    for name in names:
        part = whole.get(name, {})
        if not isinstance(part, dict):
            raise ValueError(f"{name} must be an object")  # noqa: TRY004  # pydantic expects ValueError
        whole = part
    return whole


def _ensure_part(whole: dict[str, Any], names: list[str]) -> dict[str, Any]:
    for name in names:
        whole = whole.setdefault(name, {})
    return whole


def _check_turn_count(flat: dict[str, object]) -> None:
    """Raise `ValueError` if `turn_count` contradicts the rest; the nested form does not have it."""
    turns, archived = flat.get("turns", []), flat.get("archived_count", 0)
    if isinstance(turns, list) and isinstance(archived, int) and flat.get("turn_count", 0) != archived + len(turns):
        raise ValueError("turn_count is not the number of turns held and archived")
