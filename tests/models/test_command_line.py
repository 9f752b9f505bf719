"""How our own command is written where it is printed (U3): API-6, OPS-1."""

import sys
from pathlib import Path

import pytest

from turnkeeper.models.command_line import MODULE, command_line


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in a virtual environment below the working directory, started by its path."""
    script = tmp_path / ".venv" / "bin" / "turnkeeper"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [str(script), "up"])
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    return script


def test_api_6_a_program_that_is_not_on_the_path_is_printed_with_its_path(program: Path) -> None:
    assert command_line("chat", "--session", "a b") == ".venv/bin/turnkeeper chat --session 'a b'"


def test_api_6_a_program_outside_of_the_folder_is_printed_with_its_full_path(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert command_line("chat") == f"{program} chat"
    monkeypatch.chdir(program.parent)
    assert command_line("chat") == "./turnkeeper chat"


def test_api_6_a_program_that_the_shell_finds_is_printed_by_its_name(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = tmp_path / "tools"
    linked.mkdir()
    (linked / "turnkeeper").symlink_to(program)
    monkeypatch.setenv("PATH", f"{linked}:/usr/bin:/bin")
    assert command_line("up") == "turnkeeper up"


def test_api_6_another_installation_on_the_path_is_not_mistaken_for_this_one(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "turnkeeper"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin:/bin")
    assert command_line("up") == ".venv/bin/turnkeeper up"


def test_api_6_without_an_installed_script_the_module_is_run(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.unlink()
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert command_line("up") == f"{sys.executable} -m {MODULE} up"
