"""Modules that our processes load at their start: they cost a stack memory and time (OPS-11)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SDKS = ("anthropic", "genai_prices", "mcp", "mcp_types", "openai")

DATABASE_EXTRAS = ("alembic", "sqlalchemy.dialects.postgresql", "sqlalchemy.ext.asyncio", "sqlalchemy.orm")


@pytest.mark.parametrize(
    ("loaded", "unneeded"),
    [
        (
            "turnkeeper.cli, turnkeeper.ops.local.supervisor, turnkeeper.ops.local.worker_process",
            ("alembic", "mcp", "mcp_types", "sqlalchemy", "temporalio", "turnkeeper.models.session.messages"),
        ),
        ("turnkeeper.worker", (*SDKS, *DATABASE_EXTRAS)),
        ("turnkeeper.api.app", ("jsonschema", "temporalio.worker", *SDKS, *DATABASE_EXTRAS)),
    ],
    ids=["up", "worker", "gateway"],
)
def test_ops_11_a_process_loads_only_the_modules_it_needs(loaded: str, unneeded: tuple[str, ...]) -> None:
    script = f"""if True:
        import sys
        import {loaded}
        print([name for name in {unneeded!r} if name in sys.modules])
    """
    assert printed_by(script) == "[]\n"


def test_ops_11_the_gateway_loads_no_code_of_workflows_and_activities() -> None:
    script = f"""if True:
        import sys
        from turnkeeper.api.app import create_app
        from turnkeeper.models.settings.settings import Settings
        create_app(Settings())
        packages = ("turnkeeper.activities", "turnkeeper.workflows", *{SDKS!r})
        print([name for name in packages if name in sys.modules])
    """
    assert printed_by(script) == "[]\n"


def printed_by(script: str) -> str:
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout
