"""The campaign's checker notices each broken promise, and nothing else: OPS-10, SES-6, SES-12, AGT-7."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.campaign import plan
from tests.faults.campaign.checker import Violation, violations
from tests.faults.campaign.evidence import (
    Action,
    Attempt,
    Copy,
    Effect,
    Evidence,
    Fault,
    Replays,
    SessionEnd,
    UntypedError,
)
from tests.faults.campaign.law import LawfulCopy, PartialAnswers
from tests.faults.campaign.report import as_json, table

NAMES = ["p1", "p2", "p3"]


def attempt(prompt_id: str, at: float, **fields: Any) -> Attempt:
    return replace(Attempt("s", prompt_id, f"This is {prompt_id}.", at, at + 0.5, "ok", status=202), **fields)


def call(call_id: str, name: str, status: str | None = "ok") -> dict[str, Any]:
    return {"id": call_id, "name": name, "result": status and {"status": status}}


def turn(prompt_id: str, *calls: dict[str, Any], steered: str = "", **fields: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"kind": "model", "tool_calls": list(calls)}]
    steps += [{"kind": "user", "message_id": steered}] if steered else []
    whole = {
        "id": prompt_id,
        "user_message": f"This is {prompt_id}.",
        "status": "completed",
        "agent_message": "Yes.",
        "reasoning_trajectory": {"steps": steps},
    }
    return {**whole, **fields}


def correct() -> Evidence:
    """A campaign in which every promise was kept: three prompts in a row, tools, and two clients."""
    turns = [turn("p1", call("1.1.0", "pay")), turn("p2", call("2.1.0", "effects__put")), turn("p3")]
    copies = [Copy("watcher", copy.deepcopy(turns)), Copy("poller", copy.deepcopy(turns[1:]), resets=1)]
    return Evidence(
        attempts=[attempt(name, at) for at, name in enumerate(NAMES)],
        effects=[Effect("pay", "s/1.1.0"), Effect("put", "s/2.1.0"), Effect("put", "s/2.1.0")],
        sessions=[SessionEnd("s", "idle", turns, copies=copies)],
        replays=Replays(runs=1, sessions=1),
    )


def with_end(evidence: Evidence, **fields: Any) -> Evidence:
    """Change the session's end; where turns are, the clients hold them too."""
    [end] = evidence.sessions
    if "turns" in fields and "copies" not in fields:
        fields["copies"] = [Copy("watcher", copy.deepcopy(fields["turns"]))]
    return replace(evidence, sessions=[replace(end, **fields)])


def with_turns(evidence: Evidence, *turns: dict[str, Any]) -> Evidence:
    return with_end(evidence, turns=list(turns))


def without_turn(evidence: Evidence, prompt_id: str) -> Evidence:
    return with_turns(evidence, *[one for one in evidence.sessions[0].turns if one["id"] != prompt_id])


def noticed(evidence: Evidence) -> list[tuple[str, str]]:
    return [(violation.promise, violation.subject) for violation in violations(evidence)]


def test_ops_10_a_campaign_without_broken_promises_has_no_violations():
    assert violations(correct()) == []


FATE = "every accepted prompt has exactly one fate"
ONE_TURN = "a prompt is one turn at most"
ORDER = "turns keep the order of acceptance"
ANSWERED = "every prompt is answered"
ONCE = "an at-most-once tool runs at most once"
REPEATED = "an idempotent tool is repeated with its key"
RESULT = "every call has one result"
COPY = "a client's copy equals the transcript"

TURNS = correct().sessions[0].turns


def changed(*path: str | int, to: object) -> list[Copy]:
    """The watcher's copy with another value at `path`."""
    turns = copy.deepcopy(TURNS)
    place: Any = turns
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return [Copy("watcher", turns)]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        # prompts
        (without_turn(correct(), "p3"), [(FATE, "p3")]),
        (with_end(without_turn(correct(), "p3"), fates={"p3": "rejected"}), [("a 202 is not taken back", "p3")]),
        (with_end(correct(), waiting=["p3"]), [(FATE, "p3"), (ANSWERED, "p3")]),
        (with_end(correct(), fates={"p3": "withdrawn"}), [(FATE, "p3")]),
        (with_turns(correct(), *TURNS, TURNS[2]), [(ONE_TURN, "p3")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", steered="p2")), [(FATE, "p2")]),
        (with_turns(correct(), *TURNS, turn("p4")), [(ONE_TURN, "p4")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", user_message="other")), [(ONE_TURN, "p3")]),
        (with_turns(correct(), TURNS[0], TURNS[2], TURNS[1]), [(ORDER, "p2")]),
        (with_turns(correct(), TURNS[2], TURNS[0], TURNS[1]), [(ORDER, "p1"), (ORDER, "p2")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", status="failed", error_type="internal")), [(ANSWERED, "p3")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", status="cancelled")), [(ANSWERED, "p3")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", status="processing")), [(ANSWERED, "p3")]),
        # tools
        (replace(correct(), effects=[*correct().effects, Effect("pay", "s/1.1.0")]), [(ONCE, "s/1.1.0")] * 2),
        (replace(correct(), effects=correct().effects[1:]), [(ONCE, "s/1.1.0")]),
        (replace(correct(), effects=[*correct().effects, Effect("pay", "s/9.1.0")]), [(ONCE, "s/9.1.0")]),
        (replace(correct(), effects=[*correct().effects, Effect("put", "s/other")]), [(REPEATED, "s/other")]),
        (replace(correct(), effects=correct().effects[:1]), [(REPEATED, "s/2.1.0")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", call("3.1.0", "read", None))), [(RESULT, "3.1.0")]),
        (with_turns(correct(), *TURNS[:2], turn("p3", call("1.1.0", "read"))), [(RESULT, "1.1.0")]),
        # clients
        (with_end(correct(), copies=changed(2, "agent_message", to="No.")), [(COPY, "watcher")]),
        (with_end(correct(), copies=changed(0, "reasoning_trajectory", "steps", to=[])), [(COPY, "watcher")]),
        (with_end(correct(), copies=changed(1, "new_field", to=1)), [(COPY, "watcher")]),
        (with_end(correct(), copies=[Copy("watcher", TURNS[1:])]), [(COPY, "watcher")]),
        (with_end(correct(), copies=[Copy("watcher", TURNS[:2], resets=1)]), [(COPY, "watcher")]),
        (with_end(correct(), copies=[Copy("watcher", [], resets=1)]), [(COPY, "watcher")]),
        (
            with_end(correct(), copies=[Copy("watcher", TURNS, problems=["new twice"])]),
            [("clients are sent what SES-12 and AGT-5 say", "watcher")],
        ),
        (
            replace(correct(), untyped_errors=[UntypedError("GET /", 500, 1.0, "")]),
            [("no 5xx but typed 503 and 504", "GET /")],
        ),
        # sessions
        (with_end(correct(), stalled=61.0, settled=None), [("nothing is stuck after the last fault", "s")]),
        (with_end(correct(), settled=None), [("all sessions are idle in the end", "s")]),
        (replace(correct(), replays=Replays(departures=["differs"])), [("every history replays", "")]),
        (replace(correct(), crashes=["worker_b was ended by SIGSEGV"]), [("no process crashes", "")]),
        (with_end(correct(), turns=[], unreadable="504"), [("every session can be read in the end", "s")]),
    ],
)
def test_ops_10_every_broken_promise_is_detected(evidence, expected):
    assert noticed(evidence) == expected


def test_ses_6_prompts_neither_lost_nor_repeated_are_no_violation():
    attempts = [
        *correct().attempts,
        attempt("p3", 4.0),  # the same id once more
        attempt("p4", 5.0, outcome="unknown", status=None),  # became nothing
        attempt("p5", 6.0, outcome="unknown", status=504),  # became a turn
        attempt("p6", 7.0, outcome="failed", status=429),
        attempt("p7", 8.0, mode="steer"),
        attempt("p8", 9.0),  # withdrawn, as the answer to that said
        attempt("p9", 10.0),
    ]
    actions = [Action("s", "withdraw", 9.0, "ok", "p8", 204), Action("s", "cancel", 9.5, "unknown", "p9")]
    turns = [*TURNS, turn("p5", steered="p7"), turn("p9", call("5.1.0", "pay", "outcome_unknown"), status="cancelled")]
    evidence = with_turns(replace(correct(), attempts=attempts, actions=actions), *turns)
    assert violations(evidence) == []
    ran = replace(evidence, effects=[*evidence.effects, Effect("pay", "s/5.1.0")])
    assert violations(ran) == []


def test_ses_6_a_rejected_prompt_with_a_turn_and_a_repeated_prompt_are_detected():
    refused = replace(correct(), attempts=[*correct().attempts[:2], attempt("p3", 2.0, outcome="failed", status=429)])
    assert noticed(refused) == [("a refused prompt is no turn", "p3")]
    unknown = replace(correct(), attempts=[*correct().attempts[:2], attempt("p3", 2.0, outcome="unknown", status=None)])
    assert noticed(with_turns(unknown, *TURNS, TURNS[2])) == [(ONE_TURN, "p3")]


def test_ses_6_concurrent_prompts_have_no_order_and_interrupting_ones_go_first():
    at_once = replace(correct(), attempts=[attempt("p1", 0.0), attempt("p2", 1.0), attempt("p3", 1.2)])
    assert violations(with_turns(at_once, TURNS[0], TURNS[2], TURNS[1])) == []
    interrupting = replace(correct(), attempts=[*correct().attempts[:2], attempt("p3", 2.0, mode="interrupt")])
    assert violations(with_turns(interrupting, TURNS[0], TURNS[2], TURNS[1])) == []


@given(st.permutations(range(8)))
def test_ses_6_any_other_order_of_prompts_sent_in_sequence_is_detected(order: list[int]):
    attempts = [attempt(f"p{number}", float(number)) for number in range(8)]
    turns = [turn(f"p{number}") for number in order]
    evidence = with_turns(Evidence(attempts=attempts, sessions=[SessionEnd("s", "idle", [])]), *turns)
    assert {promise for promise, _ in noticed(evidence)} == ({ORDER} if order != sorted(order) else set())


def test_ses_12_a_turn_new_twice_or_updated_before_it_is_new_is_a_problem():
    def update(*, new: list[str] = (), updated: list[str] = (), reset: bool = False) -> dict[str, Any]:
        turns = {"new_messages": [{"id": one} for one in new], "updated_messages": [{"id": one} for one in updated]}
        return {**turns, "reset": reset, "last_seen_message_id": "a", "revision": 1}

    client_copy = LawfulCopy()
    client_copy.apply(update(new=["a"]))
    client_copy.apply(update(new=["a"], reset=True))
    assert client_copy.problems == []
    client_copy.apply(update(new=["a"]))
    client_copy.apply(update(updated=["b"]))
    assert len(client_copy.problems) == 2
    assert [one["id"] for one in client_copy.turns] == ["a"]


def test_ops_10_a_plan_follows_from_its_seed_and_has_every_kind_before_any_twice():
    def drawn(seed: int) -> list[plan.PlannedFault]:
        planned = plan.faults(seed)
        return [next(planned) for _ in range(len(plan.WEIGHTS) * 2)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {fault.kind for fault in drawn(3)[: len(plan.WEIGHTS)]} == set(plan.WEIGHTS)


def test_ops_10_the_report_names_session_prompt_and_evidence():
    evidence = without_turn(correct(), "p3")
    evidence.faults += [Fault("worker_a killed", 1.0, 2.0, probed=True, recovered=2.5)]
    evidence.faults += [Fault("worker_a killed", 3.0, 4.0, probed=True)]
    broken_promises = violations(evidence)
    assert broken_promises == [
        Violation(FATE, "s", "p3", "sent at 2, answered 202 at 2.5: neither a turn nor any fate")
    ]
    text = table(evidence, broken_promises, "a title")
    assert f"BROKEN 1 times: {FATE}" in text
    assert "s p3: sent at 2, answered 202 at 2.5: neither a turn nor any fate" in text
    report = as_json(evidence, broken_promises, seed=1)
    assert report["kept"] is False
    assert report["violations"] == [vars(broken_promises[0])]
    assert report["faults"]["worker_a killed"] == {"n": 2, "p50": 2.5, "max": 2.5, "late": 1, "remarks": []}


@pytest.mark.parametrize(
    ("second", "is_kept"),
    [
        ({"fresh": False, "text": "lo"}, True),
        ({"fresh": True, "text": "Hello", "attempt": 2}, True),
        ({"fresh": False, "text": "Hello"}, False),
        ({"fresh": False, "text": "Hello", "attempt": 2}, False),
        ({"fresh": True, "text": "Bye"}, False),
    ],
)
def test_agt_5_text_that_is_shown_twice_or_not_replaced_is_a_problem(second: dict[str, Any], is_kept: bool) -> None:
    answers = PartialAnswers()
    tag = {"message_id": "p1", "turn": 1, "step": 1, "request": 1, "attempt": 1}
    for grown in ({"fresh": True, "text": "Hel"}, second):
        text = {"index": 0, "kind": "respond", "text": grown["text"]}
        answers.grow({**tag, "attempt": grown.get("attempt", 1), "fresh": grown["fresh"], "parts": [text]})
    steps = [{"kind": "model", "number": 1, "text": "Hello!"}]
    answers.judge([turn("p1", reasoning_trajectory={"steps": steps})])
    assert (answers.judged, answers.problems == []) == (1, is_kept)
