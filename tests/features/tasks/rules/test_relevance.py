"""Only the messages that matter to a task are handed off, by relevance: CTX-15."""

from typing import Any

import pytest

from tests.speed import cpu_seconds
from turnkeeper.features.tasks.histories import MAX_QUERY_TERMS, rank
from turnkeeper.features.tasks.rules.hand_off import validate_conversation_history
from turnkeeper.features.tasks.rules.task_context import HistoryMessage
from turnkeeper.features.tasks.session.task import CreateTask, PreparedTask, prepare_task
from turnkeeper.models.settings.history_policy import HistoryPolicy

NOW = "2026-01-01T00:00:00Z"

TALK = [
    ("Good morning.", "Hello!"),
    ("The staging database listens on port 5433.", "Noted."),
    ("What is for lunch?", "Soup."),
    ("Make the button blue.", "It is blue."),
    ("Is the database backed up?", "Every night."),
    ("Thank you.", "You're welcome."),
]


def history(*exchanges: tuple[str, ...]) -> list[dict[str, Any]]:
    roles = ("user", "assistant", "assistant")
    return [
        {"role": role, "content": text, "timestamp": NOW}
        for exchange in exchanges
        for role, text in zip(roles, exchange, strict=False)
    ]


def prepared(messages: list[dict[str, Any]], description: str, **policy: Any) -> PreparedTask:
    task = CreateTask.model_validate(
        {
            "description": description,
            "conversation_history": messages,
            "history_policy": {"relevant_to": True, **policy},
        }
    )
    return prepare_task(task, now=NOW, rank=rank)


def remaining(task: PreparedTask) -> list[str]:
    stored = task.context.conversation_history
    return [message.content for message in stored.messages] if stored else []


def test_ctx_15_relevant_messages_and_the_first_and_last_exchange_stay() -> None:
    task = prepared(history(*TALK), "Which port is that of staging?")
    assert remaining(task) == [text for number in (0, 1, 5) for text in TALK[number]]
    assert [(exchange.reason, exchange.stays) for exchange in task.relevance] == [
        ("first", True),
        ("relevant", True),
        ("irrelevant", False),
        ("irrelevant", False),
        ("irrelevant", False),
        ("last", True),
    ]
    assert [exchange.score for exchange in task.relevance][1] == 1.0
    assert [(exchange.first, exchange.last) for exchange in task.relevance] == [(2 * n, 2 * n + 1) for n in range(6)]


def test_ctx_15_the_report_says_what_was_left_out_and_why() -> None:
    task = prepared(history(*TALK), "Which port is that of staging?")
    assert (task.report.given, task.report.kept, task.report.left_out, task.report.dropped) == (12, 6, 6, 6)
    (warning,) = [warning for warning in task.warnings if warning.code == "left_out"]
    assert "6 of 12 messages were left out" in warning.message
    assert "of 6 exchanges 3 under a relevance of 0.3, scored 0.00 to 0." in warning.message
    assert "6 messages, 6 less relevant left out" in task.prompt


@pytest.mark.parametrize(
    ("policy", "exchanges"),
    [
        ({"min_relevance": 0}, 6),
        ({"min_relevance": 0.05}, 4),
        ({"min_relevance": 1}, 3),
        ({"relevant_to": False}, 6),
        ({"relevant_to": " "}, 6),
        ({"relevant_to": "blue buttons"}, 3),
        ({"relevant_to": "cuttlefish"}, 2),
        ({"relevant_to": '" OR NEAR(* ^'}, 2),
    ],
)
def test_ctx_15_the_policy_says_to_what_and_how_much(policy: dict[str, Any], exchanges: int) -> None:
    assert len(remaining(prepared(history(*TALK), "The staging database", **policy))) == 2 * exchanges


def test_ctx_15_an_exchange_stays_whole() -> None:
    talk = [TALK[0], ("Which one?", "The staging database.", "It has port 5433."), TALK[2], TALK[5]]
    assert remaining(prepared(history(*talk), "the port of the staging database")) == [*talk[0], *talk[1], *talk[3]]


def test_ctx_15_where_there_is_no_room_the_best_stay() -> None:
    talk = [TALK[0], *[(f"Talk {n}", "about the database") for n in range(20)], TALK[1], *[TALK[2]] * 40, TALK[5]]
    task = prepared(history(*talk), "Which port has the staging database?", max_messages=8, min_relevance=0.01)
    assert len(remaining(task)) == 8
    assert TALK[1][0] in remaining(task)
    assert {exchange.reason for exchange in task.relevance} == {"first", "last", "relevant", "irrelevant", "no_room"}
    assert [text for text in remaining(task) if text.startswith("Talk")] == ["Talk 19"]


def test_ctx_15_messages_beyond_max_messages_are_looked_at() -> None:
    talk = [TALK[0], TALK[1], *[TALK[2]] * 100, TALK[5]]
    task = prepared(history(*talk), "Which port has the staging database?", max_messages=10)
    assert remaining(task) == [*TALK[0], *TALK[1], *TALK[5]]


def test_ctx_15_warnings_are_only_of_what_stays() -> None:
    talk = [TALK[0], ("Lunch?", "Soup. " * 100), ("The database?", "Port 5433. " * 100), TALK[5]]
    fields = [
        warning.field
        for warning in prepared(history(*talk), "the database", max_total_chars=700).warnings
        if warning.code == "truncated"
    ]
    assert fields == ["conversation_history[5].content"]


def test_ctx_15_the_least_relevant_texts_are_cut_first() -> None:
    talk = [("Hello.", "Hi. " * 300), ("The database?", "Port 5433. " * 100), ("Paint it.", "Blue. " * 200)]
    contents = [len(message.content) for message in remaining_messages(prepared(history(*talk), "the database"))]
    assert contents == [6, 1_199, 13, 1_099, 9, 1_199], "there is room for all"
    tight = prepared(history(*talk), "the database", max_total_chars=2_000)
    assert [message.truncated for message in remaining_messages(tight)] == [False, True, False, False, False, True]
    assert sum(message.size for message in remaining_messages(tight)) <= 2_000


def remaining_messages(task: PreparedTask) -> list[HistoryMessage]:
    stored = task.context.conversation_history
    return stored.messages if stored else []


def test_ctx_15_an_invalid_message_is_an_error_wherever_it_is() -> None:
    with pytest.raises(Exception, match=r"conversation_history\[2\].role"):
        prepared([*history(TALK[0]), {"role": "system", "content": "x"}, *history(TALK[1])], "the database")


def test_ctx_15_texts_that_no_store_could_keep_are_ranked_and_condensed_like_others() -> None:
    texts = ["The port\ud800 is 5433.", "Lunch?", "Tea \x00" * 3_000]
    messages = [{"role": "user", "content": text, "timestamp": NOW} for text in texts]
    task = prepared(messages, "Which port?", compress="summarise", max_total_chars=9_000)
    assert [exchange.score for exchange in task.relevance] == [1.0, 0.0, 0.0]
    assert task.long_texts is not None
    assert [text.text for text in task.long_texts.texts] == ["Tea \ufffd" * 3_000]


def test_ctx_15_ranking_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="relevant_to"):
        validate_conversation_history(history(*TALK), HistoryPolicy(relevant_to="x"), NOW)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("deploying services", "We deployed the service."),
        ("Größe des Fensters", "Die GRÖSSE steht im Fenster."),
        ("数据库的端口", "数据库在端口5433。"),
        ("データベースのポート", "ポートは5433です。"),
        ("พอร์ตฐานข้อมูล", "ฐานข้อมูลใช้พอร์ต 5433"),
        ("порт базы", "База слушает порт 5433."),
    ],
)
def test_ctx_15_any_language_is_compared(query: str, match: str) -> None:
    scores = rank(query, ["Soup.", match, "Hello!", "午饭", "Something else"])
    assert scores[1] == 1.0
    assert scores.count(0.0) == 4


def test_ctx_15_the_best_passage_of_a_long_text_counts() -> None:
    long = "Nothing of interest was said here. " * 100
    scores = rank("the staging port", [f"{long} The staging port is 5433. {long}", "A port in Spain.", *[long] * 5])
    assert scores[0] == 1.0
    assert rank(" ".join(f"w{n}" for n in range(MAX_QUERY_TERMS + 9)), ["w1"]) == [1.0]


def test_ctx_15_500_messages_are_ranked_in_about_50_ms() -> None:
    talk = [
        (f"Question {n} about part {n % 37} of the plan", f"Answer {n}: " + "it is as it was. " * 40)
        for n in range(250)
    ]
    messages = [message["content"] for message in history(*talk)]
    assert cpu_seconds(lambda: rank("Which part of the plan is number 17?", messages), runs=5) < 0.05
