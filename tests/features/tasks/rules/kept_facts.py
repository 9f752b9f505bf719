"""Whether a task still knows the one fact that it needs, by how a history ten times too long is shortened (CTX-15).

The cases are in `kept_facts.json`: conversations of 500 messages, of which the policies keep 50. Each has one fact that
the task asks for: said long ago, in the middle of a long text, both, or (as a control) a moment ago. The rest is other
talk, some of it `near`: it has the task's words too, and not the fact. A fact is kept if it is in the task's first
prompt. Threads keep what was said long ago, with its whole text as far as there is room; condensing keeps what stands
in a long text. Texts are condensed by the offline model: how well another one condenses is not measured.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.features.tasks.histories import rank
from turnkeeper.features.tasks.rules.enrichment import batches, condensed_prompt, read_answer
from turnkeeper.features.tasks.session.task import CreateTask, PreparedTask, prepare_task

CASES = Path(__file__).with_name("kept_facts.json")
THREADS = Path(__file__).with_name("written_threads.json")
NOW = "2027-01-01T12:00:00Z"

POLICIES: Mapping[str, Mapping[str, object]] = {
    "truncation": {},
    "relevant threads": {"relevant_to": True},
    "semantic compression": {"compress": "summarise"},
    "both": {"relevant_to": True, "compress": "summarise"},
}

KINDS = ("old", "long", "old and long", "recent")
"""The kinds of cases: said long ago, in a long text, both, and just said."""

KEPT_KINDS: Mapping[str, frozenset[str]] = {
    "truncation": frozenset({"recent"}),
    "relevant threads": frozenset(KINDS),
    "semantic compression": frozenset({"long", "recent"}),
    "both": frozenset(KINDS),
}
"""The kinds of cases whose facts a policy has to keep. It can't keep those of the others."""


def read_cases() -> list[dict[str, Any]]:
    """Return the cases, each with its whole `history`."""
    stored = json.loads(CASES.read_text())
    return [{**case, "history": _history(case, stored)} for case in stored["cases"]]


def read_threads(exchanges: int) -> list[dict[str, Any]]:
    """Return cases of ten threads that people could have written, in conversations of n exchanges.

    Each conversation has all ten threads, at different places, and is filled up with other talk. Only one of them has
    the fact that the case's task needs: in most, far into a long answer.
    """
    threads, filler = json.loads(THREADS.read_text()), json.loads(CASES.read_text())["filler"]
    return [{**thread, "history": _around(thread, threads, exchanges, filler)} for thread in threads]


def _around(
    thread: Mapping[str, Any], threads: Sequence[Mapping[str, Any]], count: int, filler: list[list[str]]
) -> list[dict[str, str]]:
    exchanges = [_filler(number, filler) for number in range(count)]
    places = {(number * 7 + 3) % count: other for number, other in enumerate(threads) if other is not thread}
    for place, one in {**places, count * 2 // 5: thread}.items():
        user, assistant = one["exchange"]
        exchanges[place] = {"user": user, "assistant": assistant}
    return _messages(exchanges)


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
    count = stored["exchanges"]
    exchanges = [_filler(number, stored["filler"]) for number in range(count)]
    near = case["near"]
    for number, (user, assistant) in enumerate(near, start=1):
        exchanges[number * count // (len(near) + 2)] = {"user": user, "assistant": assistant}
    fact = {name: _padded(case, name, stored["padding"]) for name in ("user", "assistant")}
    exchanges[min(round(case["at"] * count), count - 2)] = fact
    return _messages(exchanges)


def _messages(exchanges: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
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
    before, after = lines[: pad["before"]], lines[pad["before"] :]
    return " ".join(filter(None, [*before, pad["near"], text, *after]))
