"""`turnkeeper keys` (API-4)."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from turnkeeper.cli import commands
from turnkeeper.features.access.keys_command import lacks_key
from turnkeeper.features.access.tables import Audit, AuditFilter, parse_key
from turnkeeper.models.settings.settings import load_settings
from turnkeeper.ops.doctor import examine
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNKEEPER_STATE_DIR", str(tmp_path / "state"))


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["keys", *arguments])


def test_api_4_a_key_is_created_printed_once_listed_and_revoked() -> None:
    created = keys("create", "--user", "Miles O'Brien", "--role", "approver", "--tenant", "acme", "--expires", "90d")
    key_id, secret = parse_key(created.stdout.strip())
    assert "not shown again" in created.stderr
    assert "until auth.keys is true" in created.stderr
    listed = keys("list")
    assert secret not in listed.output
    for text in (key_id, "approver", "acme", "expires 20", "Miles O'Brien"):
        assert text in listed.stdout
    revoked = keys("revoke", key_id).stdout
    assert f"Key {key_id} is revoked. It is refused within a second, and streams that it opened end" in revoked
    assert "revoked 20" in keys("list").stdout


async def test_api_4_the_audit_of_a_tenant_records_who_created_and_revoked_a_key() -> None:
    created = json.loads((await asyncio.to_thread(keys, "create", "--tenant", "acme", "--json")).stdout)
    await asyncio.to_thread(keys, "revoke", created["id"])
    async with Stores.of(load_settings()) as stores:
        revoked, new = await Audit(stores.database).page(AuditFilter("acme"), before=None, limit=9)
        assert await Audit(stores.database).page(AuditFilter(""), before=None, limit=9) == []
    assert [(one.action, one.key_id, one.caller, one.status) for one in (new, revoked)] == [
        ("create_key", created["id"], "command", 200),
        ("revoke_key", created["id"], "command", 200),
    ]


def test_api_4_a_key_that_cannot_be_audited_is_neither_created_nor_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key_id, _ = parse_key(keys("create").stdout.strip())

    def fail(*_: object) -> None:
        raise StoreUnavailableError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr("turnkeeper.features.access.keys_command.put_entry", fail)
        for arguments in (("create",), ("revoke", key_id)):
            assert keys(*arguments).exit_code != 0
    (line,) = keys("list").stdout.splitlines()
    assert line.startswith(key_id)
    assert "does not expire" in line


async def test_api_4_a_missing_key_is_detected_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await lacks_key(load_settings()) is False
    monkeypatch.setenv("TURNKEEPER_AUTH__KEYS", "true")
    assert await lacks_key(load_settings()) is True
    assert not (load_settings().state_dir / "archive.db").exists()
    key_id = json.loads((await asyncio.to_thread(keys, "create", "--json")).stdout)["id"]
    assert await lacks_key(load_settings()) is False
    await asyncio.to_thread(keys, "revoke", key_id)
    assert await lacks_key(load_settings()) is True
    (finding,) = [finding async for finding in examine() if finding.subject == "keys"]
    assert (finding.state, finding.message) == ("broken", "callers need a key, and there is none")
    assert "keys create --role admin" in finding.fix


def test_api_4_with_json_every_key_is_printed_as_one_object_per_line() -> None:
    created = json.loads(keys("create", "--json").stdout)
    assert parse_key(created.pop("key"))[0] == created["id"]
    assert datetime.fromisoformat(created["created_at"]) <= datetime.now(UTC)
    assert created == {**created, "tenant": "", "user": None, "role": "writer", "expires_at": None, "revoked_at": None}
    assert [json.loads(line) for line in keys("list", "--json").stdout.splitlines()] == [created]
    revoked = json.loads(keys("revoke", created["id"], "--json").stdout)
    assert revoked == {**created, "revoked_at": revoked["revoked_at"]}
    assert revoked["revoked_at"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["create", "--role", "root"], "use one of reader, writer, approver, admin"),
        (["create", "--tenant", "Acme"], "is not a tenant's name"),
        (["create", "--user", "a|b"], "is not a user's name"),
        (["create", "--expires", "soon"], "must be a duration (12h, 90d)"),
        (["create", "--expires", "2020-01-01"], "is in the past"),
        (["create", "--expires", "0d"], "is in the past"),
        (["revoke", "0123456789abcdef"], "There is no key"),
    ],
)
def test_api_4_an_invalid_option_is_explained_in_a_sentence(arguments: list[str], reason: str) -> None:
    result = keys(*arguments)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert result.stdout == ""
    assert "There are no keys." in keys("list").stdout
