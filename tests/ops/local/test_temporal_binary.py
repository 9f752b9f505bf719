"""The `temporal` program is queried for its version and flags only once (OPS-11)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turnkeeper.ops.local import dev_server as module
from turnkeeper.ops.local.dev_server import HIDE_NEWS, read_program_facts


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a program of a version; the program notes each of its runs."""

    def write(version: str, *, flag: str = HIDE_NEWS) -> Path:
        path = tmp_path / "temporal"
        path.write_text(
            f"#!/bin/sh\necho run >> {tmp_path}/runs\necho 'temporal version 1 (Server {version}, {flag})'\n"
        )
        path.chmod(0o700)
        return path

    return write


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


async def test_ops_11_the_program_is_queried_again_only_when_its_file_has_changed(tmp_path, program, monkeypatch):
    monkeypatch.setattr(module, "MIN_PROGRAM_BYTES", 0)
    first = await read_program_facts(program("1.2.3"), state_dir=tmp_path)
    assert (first.version, first.hides_news, runs(tmp_path)) == ("1.2.3", True, 2)
    assert await read_program_facts(tmp_path / "temporal", state_dir=tmp_path) == first
    assert runs(tmp_path) == 2
    newer = program("1.2.4", flag="--other")
    os.utime(newer, ns=(0, first.modified_ns + 1))
    second = await read_program_facts(newer, state_dir=tmp_path)
    assert (second.version, second.hides_news, runs(tmp_path)) == ("1.2.4", False, 4)


async def test_ops_2_a_small_program_may_be_a_wrapper_and_is_queried_at_every_start(tmp_path, program):
    await read_program_facts(program("1.2.3"), state_dir=tmp_path)
    await read_program_facts(tmp_path / "temporal", state_dir=tmp_path)
    assert runs(tmp_path) == 4


async def test_ops_2_an_unreadable_record_is_replaced(tmp_path, program, monkeypatch):
    monkeypatch.setattr(module, "MIN_PROGRAM_BYTES", 0)
    (tmp_path / "temporal.program").write_text("{")
    facts = await read_program_facts(program("1.2.3"), state_dir=tmp_path)
    assert await read_program_facts(tmp_path / "temporal", state_dir=tmp_path) == facts
    assert runs(tmp_path) == 2
