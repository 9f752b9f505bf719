"""docs/temporal.md: its program runs, and it names every public handler (SES-17)."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from tests.harness import Environment
from turnkeeper.models.session.messages import EndSession, SessionInput
from turnkeeper.models.session.prompts import PromptSignal
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "temporal.md").read_text()


async def test_ses_17_the_docs_program_for_temporals_sdk_runs_unchanged(temporal: Client, env: Environment) -> None:
    """M10: the workflow's type, task queue and handlers stood nowhere."""
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program
    names: dict[str, Any] = {}
    exec(program[1], names)
    assert await names["converse"](temporal, id=f"by-hand-{uuid4()}", task_queue=env.task_queue) == (
        "echo: what time is it?"
    )


def test_ses_17_the_docs_name_every_public_handler_field_and_search_attribute() -> None:
    definition = workflow._Definition.must_from_class(AgenticAIWorkflow)
    handlers = {**definition.queries, **definition.signals, **definition.updates}
    public = {
        str(name)
        for name, handler in handlers.items()
        if name and "For our own" not in (getattr(handler, "description", None) or "")
    }
    fields = set(SessionInput.model_fields) - {"features", "carried"}
    attributes = {key.name for key in vars(search_attributes).values() if isinstance(key, SearchAttributeKey)}
    assert {name for name in public | fields | attributes if f"`{name}`" not in PAGE} == set()
    assert f"`{Settings.model_fields['task_queue'].default}`" in PAGE


@pytest.mark.parametrize(("signal", "argument"), [("prompt", PromptSignal), ("end_chat", EndSession)])
def test_ses_17_the_docs_name_every_field_of_a_signal(signal: str, argument: type[BaseModel]) -> None:
    (fields,) = re.findall(rf"\| `{signal}` \|.*`{{(.*?)}}`", PAGE)
    expected = [name if field.is_required() else f"{name}?" for name, field in argument.model_fields.items()]
    assert fields.split(", ") == expected


def test_ops_1_every_block_of_the_docs_writes_our_command_the_same_way() -> None:
    """M14: half of the blocks began with a bare `turnkeeper`, which `make run` puts on no PATH."""
    pages = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line for block in blocks for line in block.splitlines()]
    assert [line for line in lines if re.search(r"(^\s*|\$\()turnkeeper ", line)] == []
