"""Whether a task still knows the one fact that it needs, by how a history ten times too long is shortened (CTX-15).

The cases are in `kept_facts.json`: conversations of 500 messages, of which the policies keep 50. Each has one fact that
the task asks for: said long ago, in the middle of a long text, both, or (as a control) a moment ago. The rest is other
talk. A fact is kept if it is in the task's first prompt. Texts are condensed by the offline model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.measurements import Row
from turnkeeper.activities.providers.offline.model import answer
from turnkeeper.models.session.task import CreateTask, PreparedTask, prepare_task
from turnkeeper.models.tasks.condensing import batches, condensed_prompt, read_answer
from turnkeeper.stores.ranking.bm25 import rank

CASES = Path(__file__).with_name("kept_facts.json")
NOW = "2027-01-01T12:00:00Z"
MAX_MS = 50
RUNS = 10

POLICIES: Mapping[str, Mapping[str, object]] = {
    "truncation": {},
    "relevant threads": {"relevant_to": True},
    "semantic compression": {"compress": "summarise"},
    "both": {"relevant_to": True, "compress": "summarise"},
}

LOST_BY_TRUNCATION = "old", "long", "old and long"
"""The kinds of cases whose facts plain truncation can't keep."""


def kept_facts() -> list[Row]:
    """Measure how many facts each policy keeps, and the time to rank 500 messages."""
    cases = read_cases()
    rows = [
        Row(
            f"facts kept of a history ten times too long, {name}",
            f"{count} of {len(cases)}",
            floor="",
            ratio="",
            goal="all" if name == "both" else "",
            reached=count == len(cases) if name == "both" else None,
        )
        for name, count in ((name, sum(keeps(case, policy) for case in cases)) for name, policy in POLICIES.items())
    ]
    milliseconds = median(_milliseconds(case) for case in cases)
    return [
        *rows,
        Row("500 messages ranked", f"{milliseconds:.0f} ms", "", "", f"≤ {MAX_MS} ms", milliseconds <= MAX_MS),
    ]


def read_cases() -> list[dict[str, Any]]:
    """Return the cases, each with its whole `history`."""
    stored = json.loads(CASES.read_text())
    return [{**case, "history": _history(case, stored)} for case in stored["cases"]]


def keeps(case: Mapping[str, Any], policy: Mapping[str, object]) -> bool:
    """Return whether the fact is in the first prompt of the case's task, beyond the description."""
    request = CreateTask.model_validate(
        {"description": case["task"], "conversation_history": case["history"], "history_policy": dict(policy)}
    )
    prepared = prepare_task(request, now=NOW, rank=rank)
    return case["fact"] in _condensed(prepared).removeprefix(case["task"])


def _condensed(prepared: PreparedTask) -> str:
    """Return the first prompt, with its long texts condensed as a worker does it."""
    long = prepared.long_texts
    if long is None:
        return prepared.prompt
    condensed = dict[int, str]()
    for batch in batches(long):
        condensed |= read_answer(answer(batch.request).text, batch.texts)
    return condensed_prompt(long, condensed) or prepared.prompt


def _history(case: Mapping[str, Any], stored: Mapping[str, Any]) -> list[dict[str, str]]:
    count, position = stored["exchanges"], round(case["at"] * stored["exchanges"])
    exchanges = [_filler(number, stored["filler"]) for number in range(count - 1)]
    exchanges.insert(
        min(position, count - 2), {name: _padded(case, name, stored["padding"]) for name in ("user", "assistant")}
    )
    return [
        {"role": role, "content": exchange[role], "timestamp": NOW}
        for exchange in exchanges
        for role in ("user", "assistant")
    ]


def _filler(number: int, filler: list[list[str]]) -> dict[str, str]:
    user, assistant = filler[number % len(filler)]
    return {"user": f"{user} (No. {number})", "assistant": assistant}


def _padded(case: Mapping[str, Any], role: str, padding: list[str]) -> str:
    pad, text = case["pad"], case[role]
    if pad["role"] != role:
        return str(text)
    lines = [padding[number % len(padding)] for number in range(pad["before"] + pad["after"])]
    return " ".join([*lines[: pad["before"]], text, *lines[pad["before"] :]])


def _milliseconds(case: Mapping[str, Any]) -> float:
    texts = [message["content"] for message in case["history"]]

    def once() -> float:
        started_at = perf_counter()
        rank(case["task"], texts)
        return perf_counter() - started_at

    return median(once() for _ in range(RUNS)) * 1_000
