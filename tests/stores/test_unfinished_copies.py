"""A copy that was broken off can be repeated, until one process removes its rows (SES-18)."""

from datetime import UTC, datetime, timedelta

from turnkeeper.stores.copies.unfinished import UnfinishedCopies
from turnkeeper.stores.database.database import Database

NOW = datetime(2026, 11, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def test_ses_18_the_rows_of_a_copy_are_removed_once_and_not_while_it_is_repeated(database: Database):
    copies = UnfinishedCopies(database)
    assert await copies.begin("s1", "source", now=NOW) == "source"
    assert await copies.begin("s1", "source", now=NOW + HOUR) == "source"
    assert await copies.begin("s1", "other", now=NOW + 9 * HOUR) == "source"
    assert await copies.claim(NOW + HOUR, now=NOW + 2 * HOUR, limit=3) == []
    assert await copies.claim(NOW + 2 * HOUR, now=NOW + 3 * HOUR, limit=3) == ["s1"]
    assert await copies.claim(NOW + 2 * HOUR, now=NOW + 3 * HOUR, limit=3) == []
    assert await copies.begin("s1", "source", now=NOW + 3 * HOUR) != "source"
    assert await copies.claim(NOW + 4 * HOUR, now=NOW + 5 * HOUR, limit=3) == ["s1"]
