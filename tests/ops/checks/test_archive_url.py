"""The archive's URL: which values are valid, and that no message shows its password (OPS-4, SES-15)."""

import traceback

import pytest

from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings
from turnkeeper.stores.database.database import Database

VALID = [
    "sqlite:///archive.db",
    "sqlite:////var/lib/turnkeeper/archive.db",
    "sqlite+aiosqlite:////tmp/a b.db",
    "postgresql://me:p%40ss%2F@db.example:5432/archive",
    "postgresql+asyncpg://me@db/archive?sslmode=verify-full",
    "postgresql://[::1]:5432/archive",
    "postgresql:///archive",
]

REFUSED = [
    "archive.db",
    "mysql://me:hunter2@db/archive",
    "postgresql+psycopg://me:hunter2@db/archive",
    "postgresql://me:hunter2@db",
    "postgresql://me:hunter2@db/",
    "postgresql://me:hunter2@db:port/archive",
    "postgresql://me:hunter2@db:65536/archive",
    "postgresql://me:hunt@er2@db/archive",
    "postgresql://me:hunter2@db/archive?sslmode=hunter2",
    "postgresql://me:hunter2@db/archive?application_name=x",
    "postgresql://me:hunter2@db/archive\n",
    "sqlite://hunter2/archive.db",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:///archive.db?mode=memory",
]


@pytest.mark.parametrize("url", VALID)
def test_ops_4_an_archive_is_a_file_or_a_postgresql_database(monkeypatch, url):
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", url)
    assert load_settings().archive_url == url
    assert Database(url), "the store takes it too"


@pytest.mark.parametrize("url", REFUSED)
def test_ops_4_any_other_url_stops_the_start_naming_the_setting_but_not_the_value(monkeypatch, url):
    monkeypatch.setenv("TURNKEEPER_ARCHIVE_URL", url)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == (
        "archive_url (environment variable TURNKEEPER_ARCHIVE_URL) is not allowed: write sqlite:///PATH or "
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters as %40 for @, and no option but sslmode."
    )
    error = "".join(traceback.format_exception(refused.value))
    assert "hunt" not in error
    assert "er2" not in error


def test_ops_4_an_invalid_type_of_value_is_not_repeated_either(folder):
    (folder / "turnkeeper.toml").write_text('archive_url = ["postgresql://me:hunter2@db/archive"]')
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == "archive_url (in turnkeeper.toml) is not allowed: must be a string."
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_ops_4_settings_that_are_printed_do_not_show_it():
    assert "hunter2" not in repr(Settings(archive_url="postgresql://me:hunter2@db/archive"))
