"""Skills: folders that an agent knows by name, and reads when it needs them (AGN-7)."""

from pathlib import Path

import pytest

from turnkeeper.features.agents.agent import Agent, AgentDefinitionError
from turnkeeper.features.agents.agent_file import data_of
from turnkeeper.features.agents.skills import Skill
from turnkeeper.testing import Answer, Call, Play

HEAD = "---\nname: returns\ndescription: How to take goods back.\n---\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "returns"
    folder.mkdir()
    (folder / "SKILL.md").write_text(f"{HEAD}Ask for the order first.\n")
    (folder / "letter.txt").write_text("Dear customer")
    return folder


def agent_with(folder: Path) -> Agent:
    return Agent("support", instructions="Be kind.", skills=[folder])


async def test_agn_7_an_agent_knows_its_skills_and_reads_them_by_name(play: Play, folder: Path) -> None:
    steps = [
        Call("skill", name="returns"),
        Call("skill", name="returns", file="letter.txt"),
        Call("skill", name="refunds"),
        Answer("Done."),
    ]
    async with play.session(agent_with(folder), model=steps) as session:
        turn = await session.send("I want to return it.")
        system = session.model.requests[0].head.system
    assert system.endswith("- returns: How to take goods back.")
    whole, letter, unknown = turn.results("skill")
    assert "Ask for the order first.\n\nIts files: letter.txt." in whole
    assert "Dear customer" in letter
    assert "There is no skill 'refunds'; there are returns." in unknown


def test_agn_7_another_text_of_a_skill_is_another_version(folder: Path) -> None:
    before = data_of(agent_with(folder), "shop")
    assert before["tools"] == ["shop__skill"]
    (folder / "SKILL.md").write_text(f"{HEAD}Ask for nothing.\n")
    assert data_of(agent_with(folder), "shop")["tools_digest"] != before["tools_digest"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("Just a text.", "begins with no lines between ---"),
        ("---\nname: returns\n---\nText", "no name: or no description: line"),
    ],
)
def test_agn_7_a_folder_that_is_no_skill_is_an_error_that_names_it(
    folder: Path, text: str | None, problem: str
) -> None:
    if text is None:
        (folder / "SKILL.md").unlink()
    else:
        (folder / "SKILL.md").write_text(text)
    with pytest.raises(AgentDefinitionError, match=problem) as error:
        agent_with(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "nothing.txt"])
def test_agn_7_a_skill_reads_no_file_outside_its_folder(folder: Path, path: str) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    with pytest.raises(Exception, match="has no file"):
        Skill.read(folder).file(path)
