"""Agents over HTTP: their versions, and sessions that are them (AGN-2, AGN-4)."""

from typing import Any

from httpx import AsyncClient

from tests.api.routes.test_conversation_routes import finished, fresh
from tests.harness import Environment, asks, broken, heal, replayer, says
from tests.waiting import until
from turnkeeper.models.transcript.model_call import ToolSpec

WEATHER = {"instructions": "Answer {user} in one sentence.", "tools": ["look"], "limits": {"max_steps": 5}}


async def defined(http: AsyncClient, name: str = "weather", **change: Any) -> str:
    """Define a version of an agent and return its label."""
    response = await http.put(f"/agents/{name}", json={**WEATHER, **change})
    assert response.status_code == 200, response.text
    label: str = response.json()["label"]
    return label


async def test_agn_4_agents_are_listed_with_their_versions(http: AsyncClient) -> None:
    assert (await http.get("/agents")).json() == {"agents": [], "default": None, "tool_problems": {}}
    assert [await defined(http), await defined(http, instructions="Be brief."), await defined(http, "other")] == [
        *("weather@1", "weather@2", "other@1")
    ]
    assert [one["label"] for one in (await http.get("/agents")).json()["agents"]] == ["other@1", "weather@2"]
    versions = (await http.get("/agents/weather/versions")).json()["versions"]
    assert [(one["version"], one["instructions"]) for one in versions] == [
        (2, "Be brief."),
        (1, WEATHER["instructions"]),
    ]
    assert (await http.get("/agents/weather@1")).json()["limits"] == {"max_steps": 5}
    assert (await http.get("/agents/weather@3")).json()["type"] == "urn:turnkeeper:problem:unknown-agent"


async def test_agn_4_a_version_that_is_defined_again_keeps_its_number(http: AsyncClient) -> None:
    labels = [await defined(http), await defined(http, instructions="Be brief."), await defined(http)]
    assert labels == ["weather@1", "weather@2", "weather@1"]
    assert (await http.get("/agents/weather")).json()["label"] == "weather@1"


async def test_agn_2_a_session_has_the_agents_instructions_and_only_its_tools(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.script = [asks(("pay", {"euros": 3})), says("I can't.")]
    await defined(http)
    session = fresh()
    start = {"id": session, "agent": "weather", "user": "anna", "prompt": "pay"}
    assert (await http.post("/workflow", json=start)).status_code == 201
    (turn,) = await finished(http, session)
    head = env.vendor.requests[0].head
    assert (head.system, [tool.name for tool in head.tools]) == ("Answer anna in one sentence.", ["look"])
    assert turn["reasoning_trajectory"]["steps"][0]["tool_calls"][0]["result"]["status"] == "denied"
    assert env.tools.calls == []


async def test_agn_4_a_session_keeps_its_version_until_it_is_moved(http: AsyncClient, env: Environment) -> None:
    await defined(http)
    session = fresh()
    await http.post("/workflow", json={"id": session, "agent": "weather", "user": "anna", "prompt": "one"})
    await finished(http, session)
    await defined(http, instructions="Answer in two sentences.", tools=["look", "pay"], limits={})
    await http.post(f"/workflow/{session}/prompt", json={"message": "two"})
    await finished(http, session, turns=2)
    moved = await http.patch(f"/workflow/{session}", json={"agent": "weather@2"})
    assert moved.status_code == 202, moved.text
    assert (await http.get(f"/workflow/{session}")).json()["agent"] == "weather@2"
    await http.post(f"/workflow/{session}/prompt", json={"message": "three"})
    turns = await finished(http, session, turns=3)
    assert [turn["agent"] for turn in turns] == ["weather@1", "weather@1", "weather@2"]
    systems = [request.head.system for request in env.vendor.requests]
    assert systems == [*["Answer anna in one sentence."] * 2, "Answer in two sentences."]
    assert [tool.name for tool in env.vendor.requests[-1].head.tools] == ["look", "pay"]
    (history,) = await env.adopt(env.client.get_workflow_handle(session)).histories()
    await replayer().replay_workflow(history)


async def test_agn_4_a_running_turn_ends_as_the_version_with_which_it_began(
    http: AsyncClient, env: Environment
) -> None:
    await defined(http)
    await defined(http, instructions="Answer in two sentences.")
    env.vendor.script = [asks(("look", {})), says("done")]
    env.tools.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "agent": "weather@1", "user": "anna", "prompt": "look"})
    await env.tools.gate.until_arrived(1)
    assert (await http.patch(f"/workflow/{session}", json={"agent": "weather@2"})).status_code == 202
    env.tools.gate.open()
    (turn,) = await finished(http, session)
    assert (turn["agent"], turn["agent_message"]) == ("weather@1", "done")
    assert [request.head.system for request in env.vendor.requests] == ["Answer anna in one sentence."] * 2


async def test_agn_4_chat_starts_a_session_that_is_an_agent(http: AsyncClient) -> None:
    await defined(http)
    started = (await http.post("/chat", json={"message": "hi", "agent": "weather"})).json()["workflow_id"]
    assert (await http.get(f"/workflow/{started}")).json()["agent"] == "weather@1"


async def test_agn_4_a_task_can_be_an_agent(http: AsyncClient) -> None:
    await defined(http)
    task = (await http.post("/tasks", json={"description": "Look.", "agent": "weather@1"})).json()["task_id"]
    assert (await http.get(f"/workflow/{task}")).json()["agent"] == "weather@1"


async def test_agn_4_an_unknown_agent_is_rejected_with_the_names_of_all(http: AsyncClient) -> None:
    await defined(http)
    for agent in ("wether", "weather@2"):
        answer = await http.post("/workflow", json={"agent": agent})
        assert (answer.status_code, answer.json()["detail"]) == (
            422,
            f"agent: there is no agent {agent!r}; there are: weather",
        )
    assert (await http.post("/workflow", json={"agent": "Weather!"})).status_code == 422
    assert (await http.post("/workflow", json={"agent": "default"})).status_code == 201


async def test_agn_2_a_caller_cannot_change_an_agents_tools_or_instructions(http: AsyncClient) -> None:
    await defined(http)
    for field, value in (("tools", ["*"]), ("system_prompt", "Obey.")):
        answer = await http.post("/workflow", json={"agent": "weather", field: value})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    session = fresh()
    await http.post("/workflow", json={"id": session, "agent": "weather"})
    answer = await http.patch(f"/workflow/{session}", json={"tools": ["*"]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "tools")


async def test_agn_4_wrong_data_names_its_field(http: AsyncClient) -> None:
    answer = await http.put("/agents/weather", json={"instructions": "x", "limits": {"max_steps": -1}})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "limits.max_steps")
    answer = await http.put("/agents/weather", json={**WEATHER, "model": "acme:big"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "model")
    assert (await http.put("/agents/default", json=WEATHER)).status_code == 422
    await defined(http, handoffs=["nobody"])
    answer = await http.post("/workflow", json={"agent": "weather"})
    assert "hands over to 'nobody', which is no agent" in answer.json()["detail"]


async def test_agn_2_variables_are_filled_into_instructions(http: AsyncClient, env: Environment) -> None:
    await defined(http, instructions="Serve {shop}. Say {nothing}.")
    session = fresh()
    await http.post(
        "/workflow", json={"id": session, "agent": "weather", "variables": {"shop": "Tea & Co"}, "prompt": "hi"}
    )
    await finished(http, session)
    assert env.vendor.requests[0].head.system == "Serve Tea & Co. Say {nothing}."


async def test_agn_4_a_session_waits_visibly_for_a_tool_that_no_worker_offers(
    http: AsyncClient, env: Environment
) -> None:
    await defined(http, tools=["shop__refund"])
    session = fresh()
    await http.post("/workflow", json={"id": session, "agent": "weather", "prompt": "hi"})

    async def waits() -> bool:
        described = (await http.get(f"/workflow/{session}")).json()
        reason = "No worker offers the tool shop__refund of the agent weather@1."
        return (described["status"], described["waiting_reason"]) == ("waiting_retry", reason)

    await until(waits)
    env.tools.specs = [ToolSpec(name="refund", server="shop", own_name="refund")]
    (turn,) = await finished(http, session)
    assert turn["status"] == "completed"


async def test_agn_4_without_the_store_a_session_that_is_there_takes_prompts(
    http: AsyncClient, env: Environment
) -> None:
    await defined(http)
    session = fresh()
    await http.post("/workflow", json={"id": session, "agent": "weather"})
    file = broken(env)
    prompt = {"message": "hi", "workflow_id": session, "agent": "weather"}
    assert (await http.post("/chat", json=prompt)).status_code == 202
    new = await http.post("/chat", json={**prompt, "workflow_id": fresh()})
    assert new.json()["type"] == "urn:turnkeeper:problem:archive-unavailable"
    heal(file)
