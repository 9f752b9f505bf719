"""The URL of Redis: which values are valid, and that no message shows its password (OPS-4, AGT-5)."""

import traceback

import pytest

from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings

VALID = [
    "redis://127.0.0.1",
    "redis://cache:6379/3",
    "rediss://me:p%40ss%2F@cache.example:6380/0",
    "redis://:word@[::1]:6379",
]

REFUSED = [
    "cache:6379",
    "unix:///run/hunter2.sock",
    "http://me:hunter2@cache",
    "redis://:hunt@er2@cache",
    "redis://:hunter2@cache:65536",
    "redis://:hunter2@cache:port",
    "redis://:hunter2@cache/name",
    "redis://:hunter2@cache?ssl_cert_reqs=none",
    "redis://:hunter2@",
    "redis://:hunter2@cache\n",
]


@pytest.mark.parametrize("url", VALID)
def test_ops_4_redis_is_configured_by_its_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", url)
    assert load_settings().redis_url == url


@pytest.mark.parametrize("url", REFUSED)
def test_ops_4_any_other_url_stops_the_start_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", url)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == (
        "redis_url (environment variable TURNKEEPER_REDIS_URL) is not allowed: write "
        "redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss: with TLS, special characters as %40 for @."
    )
    error = "".join(traceback.format_exception(refused.value))
    assert "hunt" not in error
    assert "er2" not in error


def test_ops_4_settings_that_are_printed_do_not_show_it() -> None:
    assert "hunter2" not in repr(Settings(redis_url="redis://:hunter2@cache"))
