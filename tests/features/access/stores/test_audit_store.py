"""The audit keeps every entry as it was written, and reads it by tenant, newest first (API-4)."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from tests.stores.builders import NOW
from turnkeeper.features.access.tables import Audit, AuditFilter, AuditRow, position_of
from turnkeeper.stores.database.database import Database

OURS = AuditFilter("")


@pytest.fixture
def audit(database: Database) -> Audit:
    return Audit(database)


def rows(*changes: dict[str, object]) -> Iterator[AuditRow]:
    """Make an entry a second for each of the changes."""
    for number, change in zip(count(), changes, strict=False):
        base = AuditRow(
            id=f"{number:032x}",
            at=NOW + timedelta(seconds=number),
            tenant="",
            caller="key:1",
            user="Ada",
            role="writer",
            operation="send_prompt",
            action="prompt",
            session_id="s1",
        )
        yield replace(base, **change)  # type: ignore[arg-type]


async def page(audit: Audit, which: AuditFilter = OURS) -> list[AuditRow]:
    return await audit.page(which, before=None, limit=100)


async def test_api_4_an_entry_is_read_as_it_was_written_with_its_outcome_if_there_is_one(audit: Audit):
    first, second, third = rows({"fields": ("title", "limits.max_steps")}, {"session_id": None}, {"message_id": "m1"})
    await audit.put([first, second])
    second, third = replace(second, session_id="s2", message_id="m2", status=202), replace(third, status=409)
    await audit.put([third, second])
    assert await page(audit) == [third, second, first]


async def test_api_4_an_entry_gets_one_outcome_and_is_never_changed_otherwise(audit: Audit):
    (entry,) = rows({})
    for change in ({}, {"status": 202, "user": "Eve"}, {"status": 500, "action": "delete"}, {"session_id": "s2"}):
        await audit.put([replace(entry, **change)])
    assert await page(audit) == [replace(entry, status=202)]


async def test_api_4_the_audit_can_be_filtered_and_is_separate_for_each_tenant(audit: Audit):
    all_rows = list(
        rows({}, {"user": "Bob"}, {"action": "end"}, {"session_id": "s2"}, {"tenant": "acme"}, {"session_id": None})
    )
    await audit.put(all_rows)
    await audit.put([replace(all_rows[5], session_id="s2", status=201)])
    expected = {
        AuditFilter(""): [5, 3, 2, 1, 0],
        AuditFilter("acme"): [4],
        AuditFilter("", session_id="s2"): [5, 3],
        AuditFilter("", user="Bob"): [1],
        AuditFilter("", action="end"): [2],
        AuditFilter("", since=NOW + timedelta(seconds=3)): [5, 3],
        AuditFilter("acme", session_id="s2"): [],
    }
    for which, numbers in expected.items():
        assert [int(entry.id, 16) for entry in await page(audit, which)] == numbers


async def test_api_4_pages_follow_each_other_without_loss_also_within_one_moment(audit: Audit):
    entries = [replace(entry, at=NOW) for entry in rows(*[{}] * 9)]
    await audit.put(entries)
    read, before = list[AuditRow](), None
    while some := await audit.page(OURS, before=before, limit=2):
        read += some
        before = position_of(some[-1])
    assert read == entries[::-1]
