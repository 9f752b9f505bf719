"""`turnkeeper init`: a small project, with an agent, its tool and a test (AGN-1)."""

from pathlib import Path

AGENT = '''\
from typing import Literal

from turnkeeper import Agent, tool


@tool(effect="read")
async def forecast(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather of tomorrow in a city."""
    return f"{city}: 12 {unit}, rain"


agent = Agent("weather", instructions="Answer in one sentence.", tools=[forecast])
'''

TEST = """\
from turnkeeper.testing import Answer, Call, Play
from weather import agent


async def test_the_forecast_is_looked_up(play: Play) -> None:
    turn = await play(agent, "Rain in Ulm?", model=[Call("forecast", city="Ulm"), Answer("Yes, rain.")])
    assert turn.calls("forecast") == [{"city": "Ulm"}]
    assert turn.answer == "Yes, rain."
"""

CONFTEST = """\
pytest_plugins = ["turnkeeper.testing.pytest_plugin"]
"""

PROJECT = """\
[project]
name = "weather"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["turnkeeper[all]"]

[project.optional-dependencies]
dev = ["pytest>=8", "pytest-asyncio>=1"]

[tool.pytest.ini_options]
asyncio_mode = "auto"
pythonpath = ["."]
"""

README = """\
# weather

An agent with one tool, on [Turnkeeper](https://pypi.org/project/turnkeeper/).

    pip install -e '.[dev]'
    turnkeeper dev weather.py     # chat page, terminal, API; reloads weather.py when you save it
    pytest                        # no key, no network

Without a key the demo model answers. It calls a tool if you say so: `call forecast with Ulm`. For a real model, set
`ANTHROPIC_API_KEY` or `OPENAI_API_KEY` before you start.

- `weather.py` has the agent. Add a function with `@tool`, and name it in `tools`.
- `effect` says what a second run of a call may do: `read` changes nothing, `idempotent` may run twice with the same
  key (`ToolContext.call_id`), `at_most_once` never does. All but `read` ask a person first, unless `ask=False`.
- `turnkeeper up weather.py` runs it without reloading.
"""

GITIGNORE = """\
.turnkeeper/
turnkeeper-workspace/
__pycache__/
"""

FILES = {
    "weather.py": AGENT,
    "test_weather.py": TEST,
    "conftest.py": CONFTEST,
    "pyproject.toml": PROJECT,
    "README.md": README,
    ".gitignore": GITIGNORE,
}


def write_project(folder: Path) -> list[Path]:
    """Write the files that are not there yet, and return them. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    new_paths = list[Path]()
    for name, text in FILES.items():
        path = folder / name
        if not path.exists():
            path.write_text(text)
            new_paths.append(path)
    return new_paths
