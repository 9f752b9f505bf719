"""Our files on disk are private, whatever their permissions were before (API-4)."""

import os
import stat
from pathlib import Path

import pytest

from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.processes import Program
from turnkeeper.stores.private_files import close_to_others, make_private_folder, write_private

OURS = [
    *("temporal.db", "temporal.db-wal", "temporal.db-shm", "temporal.db-journal", "temporal.db.lock"),
    *("temporal.db.version", "temporal.json", "temporal.program", "archive.db", "archive.db-journal", "gateway.json"),
    *("logs/worker.log", "logs/api.log", "logs/temporal.log", "logs/mcp-files.log", "logs/mcp-files.log.1"),
]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """Return what in the folder, itself included, others may do something with."""
    return [f"{path.relative_to(folder)} {mode(path):o}" for path in [folder, *folder.rglob("*")] if mode(path) & 0o077]


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def old_folder(folder: Path, no_umask: None) -> Path:
    """A state directory with the permissions of a careless copy."""
    state = folder / "state"
    for name in OURS:
        (state / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (state / name).touch(mode=0o644)
    return state


def test_api_4_files_that_others_could_read_become_private(old_folder):
    assert open_to_others(old_folder)
    close_to_others(old_folder)
    assert open_to_others(old_folder) == []
    assert mode(old_folder / "temporal.db") == 0o600
    assert mode(old_folder / "logs") == 0o700


def test_api_4_files_that_are_not_ours_are_unchanged(old_folder, folder):
    for name in ("notes.txt", "temporal.toml"):
        (old_folder / name).touch(mode=0o644)
    other = folder / "other.log"
    other.touch(mode=0o644)
    (old_folder / "logs" / "linked.log").symlink_to(other)
    close_to_others(old_folder)
    assert {mode(path) for path in (old_folder / "notes.txt", old_folder / "temporal.toml", other)} == {0o644}


def test_api_4_a_missing_state_directory_is_not_created(folder):
    close_to_others(folder / "state")
    assert not (folder / "state").exists()


def test_api_4_new_files_are_private_from_the_start(folder, no_umask):
    make_private_folder(folder / "state")
    write_private(folder / "state" / "gateway.json", "{}")
    assert open_to_others(folder / "state") == []


async def test_api_4_a_programs_log_and_files_written_under_our_umask_are_private(folder, no_umask):
    script = "print('hello'); open('state/made', 'w').close()"
    program = Program(["/usr/bin/env", "python3", "-c", script], log=folder / "state" / "log", umask=0o077)
    await program.start()
    assert await program.wait() == 0
    assert open_to_others(folder / "state") == []
    assert (folder / "state" / "log").read_text() == "hello\n"


async def test_api_4_the_servers_database_is_private_when_new_and_when_it_was_open(folder, no_umask):
    state = folder / "state"
    state.mkdir(mode=0o755)
    async with DevServer(state, ui_port=None):
        assert open_to_others(state) == []
    for path in state.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    state.chmod(0o755)
    async with DevServer(state, ui_port=None):
        assert open_to_others(state) == []
        assert mode(state / "temporal.db") == 0o600
