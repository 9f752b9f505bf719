"""Of a history ten times too long, a task keeps the fact that it needs: CTX-15, measured on cases written down."""

from typing import Any

import pytest

from benchmarks.kept_facts import LOST_BY_TRUNCATION, POLICIES, keeps, read_cases

CASES = read_cases()


def test_ctx_15_the_histories_are_ten_times_too_long() -> None:
    assert len(CASES) >= 12
    assert all(len(case["history"]) == 500 for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_ctx_15_the_fact_is_kept_where_truncation_loses_it(case: dict[str, Any]) -> None:
    outcome = {name: keeps(case, policy) for name, policy in POLICIES.items()}
    assert outcome == {
        "truncation": case["kind"] not in LOST_BY_TRUNCATION,
        "relevant threads": case["kind"] in ("old", "recent"),
        "semantic compression": case["kind"] in ("long", "recent"),
        "both": True,
    }
