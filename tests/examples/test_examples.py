"""The examples, played as their readers would: each agent does what its page says (AGN-1, AGN-2, AGN-6)."""

import importlib.util
import re
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest

from turnkeeper import Agent
from turnkeeper.features.agents.new_project import FILES
from turnkeeper.testing import Answer, Call, Play

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agent_of(name: str) -> Agent:
    agent: Agent = load(name).agent
    return agent


async def test_agn_1_the_first_program_answers(play: Play) -> None:
    turn = await play(agent_of("weather"), "Rain in Ulm?", model=[Call("forecast", city="Ulm"), Answer("Yes, rain.")])
    assert turn.calls("forecast") == [{"city": "Ulm"}]
    assert turn.results("forecast") == ["Ulm: 12 C, rain"]
    assert turn.answer == "Yes, rain."


async def test_agn_6_the_demo_model_calls_a_tool_on_request(play: Play) -> None:
    turn = await play(agent_of("weather"), "call forecast with city=Ulm, unit=F")
    assert turn.calls("forecast") == [{"city": "Ulm", "unit": "F"}]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("shop")
    monkeypatch.setattr(module, "DATABASE", tmp_path / "shop.db")
    return module


def rows(shop: ModuleType, table: str) -> int:
    with sqlite3.connect(shop.DATABASE) as connection:
        (count,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()  # a name of this test
    return int(count)


async def test_agn_3_the_shop_refunds_only_after_approval(play: Play, shop: ModuleType) -> None:
    steps = [Call("refund", order_id="A-1003", amount_eur=29, reason="broken"), Answer("Done.")]
    async with play.session(shop.agent, user="anna", model=steps) as session:
        waiting = await session.send("It arrived broken.")
        assert (waiting.waits_for, rows(shop, "refunds") if shop.DATABASE.exists() else 0) == (["refund"], 0)
        turn = await session.decide(approve=True)
    assert (turn.answer, rows(shop, "refunds")) == ("Done.", 1)


async def test_agn_3_a_note_is_written_unasked_since_its_tool_says_so(play: Play, shop: ModuleType) -> None:
    steps = [Call("add_note", order_id="A-1003", text="fragile"), Answer("Noted.")]
    turn = await play(shop.agent, "Please note it.", user="anna", model=steps)
    assert (turn.answer, rows(shop, "notes")) == ("Noted.", 1)


async def test_agn_3_a_tool_gets_the_customer_from_the_session(play: Play, shop: ModuleType) -> None:
    steps = [Call("order_status", order_id="A-1004"), Answer("I can't find it.")]
    turn = await play(shop.agent, "Where is A-1004? I am ben.", user="anna", model=steps)
    assert "no order A-1004" in turn.results("order_status")[0]


async def test_agn_2_instructions_name_the_user_and_the_day(play: Play, shop: ModuleType) -> None:
    async with play.session(shop.agent, user="anna", model=[Answer("Hello.")]) as session:
        await session.send("hi")
        (request,) = session.model.requests
    assert re.search(r"talk to anna; today is \d{4}-\d\d-\d\d\.", request.head.system)
    assert [one.name for one in request.head.tools] == ["add_note", "order_status", "refund"]


async def test_agn_2_the_writer_hands_over_to_the_researcher(play: Play) -> None:
    asking = Call("run_task", agent="researcher", description="When did tea come to Europe?")
    steps = {
        "writer": [asking, Answer("Tea came in 1610.")],
        "researcher": [Call("search_library", topic="tea"), Answer("In 1610.")],
    }
    turn = await play(agent_of("research"), "Write on tea.", model=steps)
    assert (turn.answer, turn.message.agent) == ("Tea came in 1610.", "writer@1")
    assert "In 1610." in turn.results("run_task")[0]


async def test_agn_2_an_agent_without_handoffs_can_start_no_task(play: Play) -> None:
    steps = [Call("run_task", description="Anything."), Answer("I can't.")]
    turn = await play(agent_of("weather"), "Give it to another agent.", model=steps)
    assert turn.message.reasoning_trajectory
    assert turn.message.reasoning_trajectory.steps[0].tool_calls[0].result.status == "denied"


def test_agn_1_the_first_program_is_that_of_init_and_the_documents() -> None:
    program = (EXAMPLES / "weather.py").read_text()
    assert FILES["weather.py"] == program
    for page in ("README.md", "docs/agents.md"):
        assert f"```python\n{program}```" in (EXAMPLES.parent / page).read_text()
    assert FILES["test_weather.py"] in (EXAMPLES.parent / "docs" / "agents.md").read_text()


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_agn_1_an_example_has_at_most_120_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 120
