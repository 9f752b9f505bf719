"""The store of API keys (API-4)."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from turnkeeper.features.access.tables import ApiKeys, has_secret, parse_key
from turnkeeper.stores.database.database import Database

NOW = datetime(2026, 11, 23, 5, tzinfo=UTC)


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[ApiKeys]:
    database = Database.of_file(tmp_path / "archive.db")
    yield ApiKeys(database)
    await database.close()


async def test_api_4_a_key_is_looked_up_by_id_and_verified_by_its_secret(keys: ApiKeys) -> None:
    created, text = await keys.create(tenant="acme", user="Miles O'Brien", role="approver", now=NOW)
    key_id, secret = parse_key(text)
    assert await keys.find(key_id) == created
    assert has_secret(created, secret)
    assert not has_secret(created, secret[::-1])
    assert not has_secret(None, secret)
    assert await keys.find("0123456789abcdef") is None


async def test_api_4_the_database_has_no_secret(keys: ApiKeys, tmp_path: Path) -> None:
    _, text = await keys.create(tenant="", user=None, role="reader", now=NOW)
    secret = parse_key(text)[1]
    with sqlite3.connect(tmp_path / "archive.db") as database:
        dump = "\n".join(database.iterdump())
    assert parse_key(text)[0] in dump
    assert secret not in dump
    assert secret.encode().hex() not in dump.lower()


async def test_api_4_a_key_is_revoked_once_and_expires_at_its_moment(keys: ApiKeys) -> None:
    expires_at = NOW + timedelta(days=1)
    key, _ = await keys.create(tenant="", user="ann", role="writer", now=NOW, expires_at=expires_at)
    assert [key.is_valid(now=now) for now in (NOW, expires_at)] == [True, False]
    revoked = await keys.revoke(key.id, now=NOW)
    assert not revoked.is_valid(now=NOW)
    assert await keys.revoke(key.id, now=expires_at) == revoked == await keys.find(key.id)
    assert await keys.list() == [revoked]
    assert await keys.revoke("0123456789abcdef", now=NOW) is None
