"""What agents add to the command line: `up FILE`, `doctor`, `init` (AGN-1)."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.waiting import until
from turnkeeper.features.agents.commands import _Agents, commands
from turnkeeper.models.settings.settings import Settings, SettingsError

TWO = """
from turnkeeper import Agent

helper = Agent("helper", instructions="Help.")
agent = Agent("main", instructions="Lead.", handoffs=[helper])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (file := tmp_path / "agents.py").write_text(TWO)
    return file


def save(file: Path, text: str) -> None:
    file.write_text(text)


async def test_agn_1_new_sessions_are_the_first_agent_that_is_not_handed_over_to(file: Path) -> None:
    printed: list[str] = []
    assert await _Agents().variables(Settings(agents=file), printed.append) == {"TURNKEEPER_AGENT": "main"}
    assert await _Agents().variables(Settings(agents=file, agent="helper"), printed.append) == {}
    assert (await _Agents().variables(Settings(), printed.append), printed) == ({}, [])


async def test_agn_1_a_file_that_does_not_load_stops_the_start_with_its_line(file: Path) -> None:
    save(file, f"{TWO}\nprint(undefined)\n")
    with pytest.raises(SettingsError, match=r"agents\.py: NameError: name 'undefined' is not defined \(line 7\)"):
        await _Agents().variables(Settings(agents=file), print)
    finding = await _Agents().check(Settings(agents=file))
    assert finding
    assert (finding.state, finding.subject) == ("broken", "agents")
    assert "line 7" in finding.message


async def test_agn_1_a_file_that_is_reloaded_is_waited_for(file: Path) -> None:
    save(file, "agent = (")
    printed: list[str] = []
    starting = asyncio.create_task(_Agents().variables(Settings(agents=file, agents_reload=True), printed.append))
    await until(lambda: printed)
    assert "SyntaxError: '(' was never closed (line 1). Save it again" in printed[0]
    save(file, TWO)
    assert await starting == {"TURNKEEPER_AGENT": "main"}


async def test_agn_1_doctor_names_the_agents_of_a_file(file: Path) -> None:
    finding = await _Agents().check(Settings(agents=file))
    assert finding
    assert (finding.state, finding.message) == ("good", f"main, helper from {file}")


def test_agn_1_init_writes_a_project_and_leaves_what_is_there(tmp_path: Path) -> None:
    (folder := tmp_path / "new").mkdir()
    (folder / "README.md").write_text("Mine.")
    result = CliRunner().invoke(commands, ["init", str(folder)])
    assert result.exit_code == 0
    assert (folder / "README.md").read_text() == "Mine."
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", ".gitignore", "conftest.py", "pyproject.toml", "test_weather.py", "weather.py")
    }


def test_agn_4_a_wrong_value_of_an_agent_is_named(file: Path) -> None:
    file.write_text('from turnkeeper import Agent\nagent = Agent("a", instructions="x", limits={"max_stepps": 3})\n')
    result = CliRunner().invoke(commands, ["tools", str(file), "--describe"])
    assert result.exit_code == 1
    assert "the agent 'a': limits" in result.output
    assert "max_stepps" in result.output
