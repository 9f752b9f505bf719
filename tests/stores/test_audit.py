"""The audit keeps every entry as it was written, and reads it by tenant, newest first (API-4)."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from tests.stores.builders import NOW
from turnkeeper.stores.audit import Audit, AuditFilter, AuditRow, OutcomeRow, RecordedChange, position_of
from turnkeeper.stores.database.database import Database

OURS = AuditFilter("")


@pytest.fixture
def audit(database: Database) -> Audit:
    return Audit(database)


def rows(*changes: dict[str, object]) -> Iterator[AuditRow]:
    """Make an entry a second for each of the changes."""
    for number, change in zip(count(), changes, strict=False):
        base = AuditRow(
            request_id=f"{number:032x}",
            number=0,
            at=NOW + timedelta(seconds=number),
            tenant="",
            caller="key:1",
            user="Ada",
            role="writer",
            operation="send_prompt",
            action="prompt",
            session_id="s1",
            message_id=None,
            call_id=None,
            fields=(),
        )
        yield replace(base, **change)  # type: ignore[arg-type]


async def page(audit: Audit, which: AuditFilter = OURS) -> list[RecordedChange]:
    return await audit.page(which, before=None, limit=100)


async def test_api_4_an_entry_is_read_as_it_was_written_with_its_outcome_if_there_is_one(audit: Audit):
    first, second, third = rows({"fields": ("title", "limits.max_steps")}, {"session_id": None}, {"message_id": "m1"})
    await audit.append([first, second], [])
    outcomes = [OutcomeRow(second.request_id, 202, "s2", "m2"), OutcomeRow(third.request_id, 409)]
    await audit.append([third], outcomes)
    assert await page(audit) == [
        RecordedChange(third, 409, None),
        RecordedChange(replace(second, session_id="s2", message_id="m2"), 202, None),
        RecordedChange(first, None, None),
    ]


async def test_api_4_an_entry_is_never_changed_also_where_it_is_written_twice(audit: Audit):
    (entry,) = rows({})
    outcome = OutcomeRow(entry.request_id, 202)
    for _ in range(2):
        await audit.append([entry], [outcome])
    await audit.append([replace(entry, action="delete", user="Eve")], [replace(outcome, status=500)])
    assert await page(audit) == [RecordedChange(entry, 202, None)]


async def test_api_4_the_audit_is_filtered_and_nobody_reads_another_tenant_s(audit: Audit):
    all_rows = list(
        rows({}, {"user": "Bob"}, {"action": "end"}, {"session_id": "s2"}, {"tenant": "acme"}, {"session_id": None})
    )
    await audit.append(all_rows, [OutcomeRow(all_rows[5].request_id, 201, "s2")])
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
        assert [int(change.row.request_id, 16) for change in await page(audit, which)] == numbers


async def test_api_4_pages_follow_each_other_without_loss_also_within_one_request(audit: Audit):
    entries = [replace(entry, number=number) for entry in rows({}, {}, {}) for number in range(3)]
    entries = [replace(entry, at=NOW) for entry in entries]
    await audit.append(entries, [])
    read, before = list[AuditRow](), None
    while changes := await audit.page(OURS, before=before, limit=2):
        read += [change.row for change in changes]
        before = position_of(changes[-1])
    assert read == entries[::-1]


async def test_api_4_each_change_of_a_request_has_an_outcome_of_its_own(audit: Audit):
    decision = {"request_id": "a" * 32, "action": "approve"}
    again = {"request_id": "b" * 32, "action": "approve"}
    all_rows = list(
        rows(
            {**decision, "call_id": "1.1.0"},
            {**decision, "call_id": "1.1.1", "number": 1},
            {**again, "call_id": "1.1.0"},
            {**again, "call_id": "1.1.1", "number": 1},
        )
    )
    outcomes = [OutcomeRow("a" * 32, 200), OutcomeRow("a" * 32, 409, number=1), OutcomeRow("b" * 32, 200, number=1)]
    await audit.append(all_rows, outcomes)
    assert [(change.status, change.repeats) for change in (await page(audit))[::-1]] == [
        (200, None),
        (409, None),
        (None, "a" * 32),
        (200, None),
    ]


async def test_api_4_an_accepted_request_for_the_same_thing_is_named_as_repeated(audit: Audit):
    prompt = {"message_id": "m1"}
    all_rows = list(
        rows(
            prompt,
            prompt,
            prompt,
            {"message_id": "m2"},
            {"message_id": "m1", "session_id": "s2"},
            {"message_id": "m1", "tenant": "acme"},
            {},
            {},
            {"action": "configure"},
            {"action": "configure"},
            {"action": "delete"},
            {"action": "delete"},
            {"action": "approve", "call_id": "1.1.0"},
            {"action": "approve", "call_id": "1.1.0"},
        )
    )
    outcomes = [OutcomeRow(entry.request_id, 503 if number == 0 else 202) for number, entry in enumerate(all_rows)]
    await audit.append(all_rows, outcomes)
    repeats = {
        int(change.row.request_id, 16): int(change.repeats, 16) for change in await page(audit) if change.repeats
    }
    assert repeats == {2: 1, 11: 10, 13: 12}
