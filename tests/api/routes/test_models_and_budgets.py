"""The model, usage and budgets of a session over HTTP: AGT-1, AGT-4, AGT-10."""

import json
import re

import pytest
from httpx import AsyncClient

from tests.api.routes.test_conversation_routes import finished, fresh
from tests.harness import Environment, asks, says
from turnkeeper.models.transcript.conversation import Usage


async def model_of(http: AsyncClient, **start: str) -> str:
    session = (await http.post("/workflow", json=start)).json()["workflow_id"]
    return (await http.get(f"/workflow/{session}")).json()["model"]


async def test_agt_4_a_session_reports_its_model(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await model_of(http) == "offline:"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert await model_of(http) == "openai:gpt-5.5"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-2")
    assert await model_of(http) == "anthropic:claude-sonnet-5-5"
    assert await model_of(http, model="openai-chat:llama") == "openai-chat:llama"


async def test_agt_10_a_session_reports_its_usage_and_cost(http: AsyncClient, env: Environment) -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=10, cached_tokens=900_000)
    env.vendor.script = [says("here").model_copy(update={"usage": usage, "model": "gpt-4o"})]
    session = fresh()
    await http.post("/workflow", json={"id": session, "model": "openai:gpt-4o", "prompt": "hello"})
    await finished(http, session)
    described = (await http.get(f"/workflow/{session}")).json()["usage"]
    # 100,000 tokens at $2.50 a million, 900,000 at $1.25, and 10 of output at $10
    assert described == usage.model_copy(update={"cost": 1.3751}).model_dump()


async def test_agt_1_the_error_of_a_budget_says_how_to_raise_it(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [asks(("look", {}), ("look", {})), asks(("look", {}), ("look", {})), says("seen")]
    session = fresh()
    await http.post("/workflow", json={"id": session, "limits": {"max_tool_calls": 1}, "prompt": "look twice"})
    (turn,) = await finished(http, session)
    assert turn["error_type"] == "budget"
    verb, path, change = re.search(r"(PATCH) (/workflow/\{id\}), with (\{.*\}), and", turn["error"]).groups()
    raised = await http.request(verb, path.format(id=session), json=json.loads(change.replace("N", "2")))
    assert raised.status_code == 202
    await http.post(f"/workflow/{session}/prompt", json={"message": "again"})
    _, second = await finished(http, session, turns=2)
    assert second["agent_message"] == "seen"
