"""What the doctor reports about the carrier of partial output (OPS-3, AGT-5)."""

import os
from pathlib import Path

import pytest
from redis import Redis

from tests.processes.forked import PIPE, ROOT, fork
from tests.stores.partials.redis_server import RedisServer
from turnkeeper.ops.doctor import Finding, examine
from turnkeeper.ops.local.processes import free_port


@pytest.fixture(autouse=True)
def _in_a_folder_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def partial_output() -> Finding:
    """Return the doctor's finding about partial output; run no other check."""
    findings = examine()
    async for finding in findings:
        if finding.subject == "partial output":
            await findings.aclose()
            return finding
    raise AssertionError("the doctor says nothing of partial output")


async def test_ops_3_on_one_machine_partial_output_needs_no_configuration(tmp_path: Path) -> None:
    folder = tmp_path / ".turnkeeper" / "partials"
    assert await partial_output() == Finding("partial output", "good", f"through sockets in {folder}")


async def test_ops_3_without_sockets_the_doctor_reports_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    folder = tmp_path / ".turnkeeper" / "partials"
    elsewhere = "for workers on other machines, set redis_url or partials=heartbeats"
    message = f"none: no worker has a socket in {folder}; {elsewhere}"
    assert await partial_output() == Finding("partial output", "good", message)


async def test_ops_3_configured_heartbeats_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_PARTIALS", "heartbeats")
    assert await partial_output() == Finding("partial output", "good", "through heartbeats, once a second")


async def test_ops_3_a_working_redis_is_reported_and_left_unchanged(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_server.url)
    assert await partial_output() == Finding("partial output", "good", f"through Redis at {redis_server.place}")
    with Redis.from_url(redis_server.url) as redis:
        assert redis.dbsize() == 0


FIX = "check that Redis runs and accepts this user, or unset redis_url"


async def test_ops_3_an_unreachable_redis_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", f"redis://:hunter2@127.0.0.1:{port}")
    message = f"Redis can't be reached (ConnectionError), at 127.0.0.1:{port}"
    assert await partial_output() == Finding("partial output", "broken", message, FIX)


async def test_ops_3_a_wrong_password_is_reported_and_not_repeated(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", f"redis://:hunter2@{redis_server.place}")
    message = f"Redis does not accept the user or the password (AuthenticationError), at {redis_server.place}"
    assert await partial_output() == Finding("partial output", "broken", message, FIX)


async def test_ops_3_a_user_without_permission_to_publish_is_reported(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redis.from_url(redis_server.url) as redis:
        redis.acl_setuser("reader", enabled=True, passwords=["+word"], keys=["*"], commands=["+@read"])
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", f"redis://reader:word@{redis_server.place}")
    message = f"Redis rejects the commands that we need (NoPermissionError), at {redis_server.place}"
    assert await partial_output() == Finding("partial output", "broken", message, FIX)


async def test_ops_3_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", "redis://127.0.0.1")
    monkeypatch.setattr("turnkeeper.ops.doctor._is_installed", lambda package: package != "redis")
    message = "redis_url is set, but the package redis is not installed"
    assert await partial_output() == Finding(
        "partial output", "broken", message, "run `pip install 'turnkeeper[redis]'`"
    )


async def test_ops_4_redis_is_loaded_only_if_it_is_configured() -> None:
    script = "import sys, worker, turnkeeper.api.app, turnkeeper.ops.doctor, cli; print('redis' in sys.modules)"
    ran = await fork("tests.processes.script", script, env=os.environ, cwd=ROOT, stdout=PIPE)
    assert await ran.communicate() == (b"False\n", b"")
