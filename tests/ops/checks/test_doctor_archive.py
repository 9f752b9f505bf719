"""The doctor's findings about the archive (OPS-3, SES-15)."""

import sys

import pytest
from sqlalchemy import func, select

from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.doctor import Finding, examine
from turnkeeper.stores.database.tables import BLOBS
from turnkeeper.stores.stores import Stores


async def archive() -> Finding:
    """Return what the doctor says of it, and look no further."""
    findings = examine()
    async for finding in findings:
        if finding.subject == "archive":
            await findings.aclose()
            return finding
    raise AssertionError("the doctor says nothing of the archive")


async def test_ops_3_a_missing_archive_is_created_at_first_use_and_not_by_the_doctor(folder):
    file = folder / ".turnkeeper" / "archive.db"
    assert await archive() == Finding("archive", "good", f"{file}, created at the first use")
    assert not file.parent.exists()


async def test_ops_3_checking_a_writable_archive_leaves_it_unchanged(folder):
    async with Stores.of(Settings()) as stores:
        await stores.blobs.put("s1", ["a"])
        assert await archive() == Finding("archive", "good", str(folder / ".turnkeeper" / "archive.db"))
        counted = select(func.count()).select_from(BLOBS)
        assert await stores.database.read(lambda connection: connection.scalar(counted)) == 1


async def test_ops_3_a_file_that_is_not_an_archive_is_reported_with_the_fix(folder, monkeypatch):
    file = folder / "notes.txt"
    file.write_text("no database at all" * 100)
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", f"sqlite:///{file}")
    assert await archive() == Finding(
        "archive",
        "broken",
        f"The store's file is not a database (SQLITE_NOTADB), at {file}",
        "repair or move the file, or set archive_url",
    )


async def test_ops_3_a_folder_that_cannot_hold_an_archive_is_reported_with_the_fix(folder, monkeypatch):
    (folder / "taken").touch()
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", "sqlite:///taken/archive.db")
    assert await archive() == Finding(
        "archive",
        "broken",
        f"{folder / 'taken' / 'archive.db'} cannot be created, since {folder / 'taken'} is not a folder",
        "move it, or set archive_url",
    )


async def test_ops_3_an_unreachable_postgresql_is_reported_without_its_password(monkeypatch):
    pytest.importorskip("asyncpg", reason="the package asyncpg is not installed: turnkeeper[postgres]")
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", "postgresql://me:hunter2@127.0.0.1:1/archive")
    assert await archive() == Finding(
        "archive",
        "broken",
        "The store's database can't be reached (ConnectionRefusedError), at postgresql://me:***@127.0.0.1:1/archive",
        "check that PostgreSQL runs and has this database and user, or set archive_url",
    )


async def test_ops_3_a_missing_postgresql_driver_is_reported_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", "postgresql://me:hunter2@127.0.0.1:1/archive")
    assert await archive() == Finding(
        "archive", "broken", "PostgreSQL needs the package asyncpg", "install turnkeeper[postgres]"
    )
