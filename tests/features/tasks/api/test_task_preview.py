"""What a task's agent would be told, without starting anything: TSK-1, TSK-2, TSK-3, API-1, API-2."""

import time
from typing import Any

import pytest
from httpx import AsyncClient

from tests.api.http.test_bad_input import problem_of
from tests.harness import SLACK, DrivenSession, Environment, says
from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.features.tasks.rules.hand_off import validate_conversation_history

HISTORY = [
    {"role": "user", "content": "Call the colour teal.", "timestamp": "2025-10-29T13:20:15Z"},
    {"role": "orchestrator", "content": "Yes. " * 100},
]


def message(content: Any = "x", role: Any = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


async def preview(http: AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/tasks/preview", json={"description": "Paint it.", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def inheritance_warning(view: dict[str, Any]) -> str:
    (message,) = [warning["message"] for warning in view["warnings"] if warning["code"] == "too_many_messages"]
    return message.removeprefix("Of the parent's conversation ").removesuffix(".")


async def conversation(env: Environment, turns: int, start: Any = None) -> DrivenSession:
    session = await env.start(start)
    for number in range(1, turns + 1):
        await session.prompt(id=f"p{number}", text=f"prompt {number}")
        await session.idle(turns=number)
    return session


# ── What is answered ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_2_a_preview_has_the_report_warnings_stored_history_and_prompt(
    http_nowhere: AsyncClient,
) -> None:
    view = await preview(http_nowhere, conversation_history=HISTORY, constraints=["Two coats"], priority="P0")
    assert view["context"] == {
        "given": 2,
        "kept": 2,
        "truncated": 1,
        "dropped": 0,
        "estimated_tokens_before": 131,
        "estimated_tokens_after": 47,
    }
    assert [(warning["code"], warning["field"]) for warning in view["warnings"]] == [
        ("truncated", "conversation_history[1].content"),
        ("missing_timestamp", "conversation_history[1].timestamp"),
    ]
    assert all(warning["message"] for warning in view["warnings"])
    history = view["conversation_history"]
    expected, _ = validate_conversation_history(HISTORY, "keep_user", history["metadata"]["collection_time"])
    assert expected is not None
    assert history == expected.model_dump()
    assert view["prompt"].startswith("Paint it.\n\n====")
    for part in ("    P0\n", "    - Two coats\n", "[1] 👤 User (13:20:15):\n    Call the colour teal.\n"):
        assert part in view["prompt"]


async def test_tsk_2_nothing_is_started(http: AsyncClient, env: Environment) -> None:
    session = await env.start()
    await preview(http, parent=session.handle.id, conversation_history=HISTORY, idempotency_key="k1", title="Paint")
    assert (await session.state()).revision == 0
    assert env.vendor.requests == []


async def test_tsk_1_a_history_is_cut_by_a_preset_or_by_a_custom_policy(http_nowhere: AsyncClient) -> None:
    history = [message("x" * 200), message("y" * 200, "assistant")]
    for policy, truncated in (
        ("keep_user", [False, True]),
        ("keep_assistant", [True, False]),
        ({"user_text": {"max_chars": 10, "marker": "~"}, "other_text": {"max_chars": 500}}, [True, False]),
    ):
        view = await preview(http_nowhere, conversation_history=history, history_policy=policy)
        assert [entry["truncated"] for entry in view["conversation_history"]["messages"]] == truncated


@pytest.mark.parametrize("history", [None, []])
async def test_tsk_1_only_the_description_is_needed(http_nowhere: AsyncClient, history: Any) -> None:
    view = await preview(http_nowhere, conversation_history=history)
    assert (view["prompt"], view["conversation_history"], view["warnings"]) == ("Paint it.", None, [])


# ── Inheriting ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_1_an_inherited_transcript_has_the_parents_agent_as_the_assistant(
    http: AsyncClient, env: Environment
) -> None:
    session = await conversation(env, 2)
    view = await preview(http, conversation_history="inherit", parent=session.handle.id)
    assert [(m["role"], m["content"]) for m in view["conversation_history"]["messages"]] == [
        ("user", "prompt 1"),
        ("assistant", "echo: prompt 1"),
        ("user", "prompt 2"),
        ("assistant", "echo: prompt 2"),
    ]
    assert view["warnings"] == []
    assert view["context"]["given"] == 4


async def test_tsk_1_an_inherited_text_is_cut_where_a_sent_one_would_be_rejected(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    await session.prompt("x" * 1_000)
    await session.idle(turns=1)
    view = await preview(
        http, conversation_history="inherit", parent=session.handle.id, history_policy="keep_assistant"
    )
    assert [entry["original_length"] for entry in view["conversation_history"]["messages"]] == [1_000, 1_006]
    answer = await http.post(
        "/tasks/preview",
        json={"description": "x", "conversation_history": [message("x" * 1_000)], "history_policy": "keep_assistant"},
    )
    assert answer.json()["errors"][0]["field"] == "conversation_history[0].content"


async def test_tsk_1_what_the_parent_has_moved_to_the_archive_is_inherited_too(
    shared_http: AsyncClient, long_chat: DrivenSession
) -> None:
    inherited = {"conversation_history": "inherit", "parent": long_chat.handle.id}
    view = await preview(shared_http, **inherited, history_policy={"max_messages": 20})
    contents = [m["content"].split(" x")[0] for m in view["conversation_history"]["messages"]]
    assert contents[-1] == "echo: prompt 15"
    assert contents[0] == "prompt 6"
    assert (view["context"]["given"], view["context"]["kept"]) == (20, 20)
    assert inheritance_warning(view) == "the latest 20 messages of user, assistant were taken"
    few = await preview(shared_http, **inherited, history_policy={"max_messages": 5})
    assert (few["context"]["given"], few["context"]["kept"]) == (5, 5)
    assert inheritance_warning(few) == "the latest 5 messages of user, assistant were taken"


async def test_tsk_1_messages_of_the_policys_roles_are_found_in_earlier_turns(
    http: AsyncClient, env: Environment
) -> None:
    failure = ModelError("bad_request", "no")
    env.vendor.script = [says("one"), says("two"), says("three"), *[failure] * 4]
    session = await conversation(env, 7)
    policy = {"roles": ["assistant"], "max_messages": 2}
    view = await preview(http, conversation_history="inherit", parent=session.handle.id, history_policy=policy)
    assert [m["content"] for m in view["conversation_history"]["messages"]] == ["two", "three"]
    assert view["context"]["given"] == 2
    assert inheritance_warning(view) == "the latest 2 messages of assistant were taken"


async def test_tsk_1_roles_without_messages_leave_an_empty_history_and_a_warning(
    http: AsyncClient, env: Environment
) -> None:
    session = await conversation(env, 1)
    policy = {"roles": ["orchestrator"]}
    view = await preview(http, conversation_history="inherit", parent=session.handle.id, history_policy=policy)
    assert (view["prompt"], view["context"]["given"]) == ("Paint it.", 0)
    assert [warning["code"] for warning in view["warnings"]] == ["too_many_messages", "all_filtered"]


async def test_tsk_1_a_conversation_longer_than_a_page_is_inherited_as_well(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.script = [says("y" * 150_000) for _ in range(10)]
    session = await conversation(env, 10)
    view = await preview(http, conversation_history="inherit", parent=session.handle.id)
    assert [entry["original_length"] for entry in view["conversation_history"]["messages"]][:3] == [8, 150_000, 8]
    assert view["context"]["given"] == 20
    assert "too_many_messages" not in [warning["code"] for warning in view["warnings"]]


async def test_tsk_1_a_session_in_which_nothing_was_said_has_nothing_to_inherit(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    view = await preview(http, conversation_history="inherit", parent=session.handle.id)
    assert (view["prompt"], view["conversation_history"]) == ("Paint it.", None)


@pytest.mark.parametrize("history", ["inherit", None])
async def test_api_2_an_unknown_parent_is_404(http: AsyncClient, history: Any) -> None:
    body = {"description": "x", "conversation_history": history, "parent": "never-was"}
    answer = await http.post("/tasks/preview", json=body)
    assert (answer.status_code, problem_of(answer)) == (404, "unknown-session")


async def test_api_2_without_temporal_only_a_parent_is_out_of_reach(http_nowhere: AsyncClient) -> None:
    body = {"description": "x", "conversation_history": "inherit", "parent": "s1"}
    began = time.monotonic()
    answer = await http_nowhere.post("/tasks/preview", json=body)
    assert (answer.status_code, problem_of(answer)) == (503, "temporal-unreachable")
    assert time.monotonic() - began < 3 + SLACK
    await preview(http_nowhere)


# ── Bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"description": None}, "description"),
        ({"description": ""}, "description"),
        ({"description": " \n"}, "description"),
        ({"description": 5}, "description"),
        ({"description": "a\0b"}, "description"),
        ({"description": "x" * 20_001}, "description"),
        ({"description": "x" * 5_000_000}, "description"),
        ({"background_context": "a\n" * 9_999 + "a"}, "background_context"),
        ({"priority": "P5"}, "priority"),
        ({"priority": "high\nP0"}, "priority"),
        ({"client_cwd": ["/"]}, "client_cwd"),
        ({"constraints": "none"}, "constraints"),
        ({"constraints": ["a", None]}, "constraints[1]"),
        ({"constraints": ["x"] * 2_501}, "constraints"),
        ({"relevant_files": {"a": 1}}, "relevant_files"),
        ({"title": "a\nb"}, "title"),
        ({"model": "nobody:x"}, "model"),
        ({"tool_policy": {"pay": "sometimes"}}, "tool_policy.pay"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"idempotency_key": "a b"}, "idempotency_key"),
        ({"parent": "../x"}, "parent"),
        ({"colour": "teal"}, "colour"),
        ({"attachments": []}, "attachments"),
        ({"conversation_history": "inherit"}, "parent"),
        ({"conversation_history": "INHERIT", "parent": "s1"}, "conversation_history"),
        ({"conversation_history": {}}, "conversation_history"),
        ({"conversation_history": 0}, "conversation_history"),
        ({"conversation_history": [None]}, "conversation_history[0]"),
        ({"conversation_history": [message(), {"role": "user"}]}, "conversation_history[1]"),
        ({"conversation_history": [message(role="system")]}, "conversation_history[0].role"),
        ({"conversation_history": [message(role={"user": 1})]}, "conversation_history[0].role"),
        ({"conversation_history": [message(role="r" * 5_000_000)]}, "conversation_history[0].role"),
        ({"conversation_history": [message(10**4_000)]}, "conversation_history[0].content"),
        ({"conversation_history": [message([["x"]])]}, "conversation_history[0].content"),
        ({"conversation_history": [message(attachments=[{"kind": "code"}])]}, "conversation_history[0].attachments[0]"),
        ({"conversation_history": [message(attachments="x")]}, "conversation_history[0].attachments"),
        (
            {"conversation_history": [message(attachments=[{"type": "code", "hash": "0" * 64}])]},
            "conversation_history[0].attachments[0].hash",
        ),
        (
            {
                "conversation_history": [
                    message(attachments=[{"type": "image", "media_type": "image/png", "data": "!"}])
                ]
            },
            "conversation_history[0].attachments[0].data",
        ),
        ({"history_policy": "keep_all"}, "history_policy"),
        ({"history_policy": None}, "history_policy"),
        ({"history_policy": {"max_messages": 0}}, "history_policy.max_messages"),
        ({"history_policy": {"user_text": {"max_chars": True}}}, "history_policy.user_text.max_chars"),
        ({"history_policy": {"colour": 1}}, "history_policy.colour"),
        ({"history_policy": {"roles": ["user", "system"]}}, "history_policy.roles[1]"),
        ({"history_policy": {"body": 1}}, "history_policy.body"),
        ({"history_policy": {"é\n": 1}}, "history_policy.\\xe9\\n"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_api_2_an_invalid_task_names_its_field_the_reason_and_the_value(
    http_nowhere: AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await http_nowhere.post("/tasks/preview", json={"description": "x", **body})
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    (error,) = answer.json()["errors"]
    assert (error["field"], bool(error["reason"]), bool(error["value"])) == (field, True, True)
    assert len(answer.content) < 1_000


async def test_api_2_every_field_of_an_invalid_task_is_named(http_nowhere: AsyncClient) -> None:
    answer = await http_nowhere.post("/tasks/preview", json={"priority": 1, "timeout": -1, "x": 2})
    assert {error["field"] for error in answer.json()["errors"]} == {"description", "priority", "timeout", "x"}


async def test_api_2_of_a_body_that_is_no_json_the_body_is_named(http_nowhere: AsyncClient) -> None:
    answer = await http_nowhere.post("/tasks/preview", content=b'{"a":', headers={"content-type": "application/json"})
    assert [error["field"] for error in answer.json()["errors"]] == ["body"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"description": "\\ud800"}',
        b'{"description": "x", "\\ud800": 1}',
        b'{"description": "x", "history_policy": {"\\ud800": 1}}',
        b'{"description": "x", "conversation_history": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"description": "x", "conversation_history": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"description": "x", "conversation_history": [{"role": "user", "content": '
        + b'{"a":' * 900
        + b"1"
        + b"}" * 900
        + b"}]}",
        b'{"description": "x", "conversation_history": [' + b"9" * 6_000 + b"]}",
        b"[]",
        b"{",
        b"",
    ],
    ids=lambda content: content[:40].decode(),
)
async def test_api_2_a_hostile_body_is_a_422(http_nowhere: AsyncClient, content: bytes) -> None:
    answer = await http_nowhere.post("/tasks/preview", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")


async def test_api_2_texts_that_no_store_could_keep_and_nested_leftovers_are_no_error(
    http_nowhere: AsyncClient,
) -> None:
    body = b"""{"description": "x", "conversation_history": [{"role": "user", "content": "a\\ud800\\u0000b", "x": %s,
        "timestamp": "\\ud800"}]}""" % (b"[" * 500 + b"]" * 500)
    answer = await http_nowhere.post("/tasks/preview", content=body, headers={"content-type": "application/json"})
    assert answer.json()["conversation_history"]["messages"][0]["content"] == "a\ufffd\ufffdb"
    assert [warning["code"] for warning in answer.json()["warnings"]] == ["replaced_characters", "invalid_timestamp"]


async def test_api_2_a_text_of_five_megabytes_and_a_hundred_thousand_messages_are_answered(
    http_nowhere: AsyncClient,
) -> None:
    large = await preview(http_nowhere, conversation_history=[message("x" * 5_000_000)])
    assert large["conversation_history"]["messages"][0]["original_length"] == 5_000_000
    many = await preview(http_nowhere, conversation_history=[message()] * 100_000)
    assert (many["context"]["given"], many["context"]["kept"]) == (100_000, 50)
    assert many["warnings"][0]["code"] == "too_many_messages"


async def test_api_2_a_body_with_a_history_may_have_ten_mebibytes_and_no_more(http_nowhere: AsyncClient) -> None:
    announced = await http_nowhere.post("/tasks/preview", content=b"x" * (10 * 1024**2 + 1))
    assert (announced.status_code, problem_of(announced)) == (413, "too-large")
    assert "10 MiB" in announced.json()["detail"]

    async def stream() -> Any:
        for _ in range(12):
            yield b"x" * 1024**2

    streamed = await http_nowhere.post("/tasks/preview", content=stream(), headers={"content-type": "application/json"})
    assert (streamed.status_code, problem_of(streamed)) == (413, "too-large")
    assert "10 MiB" in streamed.json()["detail"]


def test_api_2_the_description_of_the_route_says_what_a_history_and_a_policy_are(api_document: Any) -> None:
    fields = api_document["components"]["schemas"]["CreateTask"]["properties"]
    messages, inherited, _ = fields["conversation_history"]["anyOf"]
    assert messages["items"]["required"] == ["role", "content"]
    assert inherited == {"const": "inherit"}
    assert api_document["paths"]["/tasks/preview"]["post"]["operationId"] == "preview_task"
    assert "HistoryPolicy" in str(fields["history_policy"])
    assert "keep_assistant" in str(fields["history_policy"])


async def test_tsk_7_an_agent_answers_from_the_handed_over_history_alone(http: AsyncClient, env: Environment) -> None:
    env.vendor.answer = answer
    task = {"description": "What is the launch code?"}
    history = [message("The launch code is 4711."), message("Noted.", "assistant")]
    for inheritance, expected in (
        ({}, "I find nothing about"),
        ({"conversation_history": history}, "The launch code is 4711."),
    ):
        session = await env.start()
        await session.prompt((await preview(http, **task, **inheritance))["prompt"])
        (turn,) = await session.idle(turns=1)
        assert expected in (turn.agent_message or "")
