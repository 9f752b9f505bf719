"""Of a history ten times too long, a task keeps the fact that it needs: CTX-15, measured on cases written down."""

from typing import Any

import pytest

from tests.features.tasks.rules.kept_facts import KEPT_KINDS, POLICIES, keeps, read_cases, read_threads
from turnkeeper.features.tasks.histories import rank

CASES = read_cases()

NAMES = [case["name"] for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_ctx_15_the_histories_are_ten_times_too_long_and_have_the_fact_once(case: dict[str, Any]) -> None:
    contents = [message["content"] for message in case["history"]]
    assert len(CASES) >= 12
    assert len(contents) == 500
    assert [case["fact"] in text for text in contents].count(True) == 1
    assert case["fact"] not in case["task"]
    if case["kind"] != "recent":
        assert sum(score > 0.1 for score in rank(case["task"], contents)) >= 4, "too little of it is near the task"


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_ctx_15_ranking_and_condensing_preserve_a_fact_that_truncation_drops(case: dict[str, Any]) -> None:
    outcome = {name: keeps(case, policy) for name, policy in POLICIES.items()}
    assert outcome == {name: case["kind"] in kinds for name, kinds in KEPT_KINDS.items()}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_ctx_15_threads_on_another_subject_do_not_have_the_fact(case: dict[str, Any]) -> None:
    assert not keeps(case, {"relevant_to": "the weather in Lisbon", "compress": "summarise"})


@pytest.mark.parametrize(
    ("exchanges", "counts"),
    [
        (10, {"truncation": 2, "relevant threads": 10, "semantic compression": 10, "both": 10}),
        (30, {"truncation": 2, "relevant threads": 10, "semantic compression": 10, "both": 10}),
        (60, {"truncation": 0, "relevant threads": 10, "semantic compression": 0, "both": 10}),
        (150, {"truncation": 0, "relevant threads": 10, "semantic compression": 0, "both": 10}),
    ],
)
def test_ctx_15_the_facts_of_hand_written_threads_are_preserved(exchanges: int, counts: dict[str, int]) -> None:
    threads = read_threads(exchanges)
    assert len(threads) == 10
    assert {name: sum(keeps(case, policy) for case in threads) for name, policy in POLICIES.items()} == counts
