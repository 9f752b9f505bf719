"""Which promises the evidence of a campaign breaks: pure, each promise one function (OPS-10, SES-6, SES-12, AGT-7)."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults.campaign.evidence import Attempt, Copy, Evidence, SessionEnd

Turn = dict[str, Any]

AT_MOST_ONCE, IDEMPOTENT = "pay", "put"
"""Tools of `effects`, by the names they record themselves with."""

MAX_SHOWN = 200
"""Characters of a value that evidence quotes."""


@dataclass(frozen=True)
class Violation:
    """A broken promise. `subject` is the prompt, call or client it was broken to; `evidence` says what was seen."""

    promise: str
    session: str
    subject: str
    evidence: str


Promise = Callable[[Evidence], Iterator[Violation]]


def violations(evidence: Evidence) -> list[Violation]:
    """Return every broken promise; empty: all were kept."""
    return [violation for promise in PROMISES for violation in promise(evidence)]


# ---- prompts


def accepted_prompts_have_one_fate(evidence: Evidence) -> Iterator[Violation]:
    """Every accepted prompt is a turn, was steered into one, or has a stated fate, and only one of these."""
    name = "every accepted prompt has exactly one fate"
    confirmed = _withdrawals(evidence)
    for end, prompts in _by_session(evidence):
        turns = {turn["id"] for turn in end.turns}
        steered = _steered(end)
        for prompt_id, attempts in prompts.items():
            accepted = next((attempt for attempt in attempts if attempt.outcome == "ok"), None)
            # The answer to a withdrawal states a fate too.
            fate = end.fates.get(prompt_id) or ("withdrawn" if (end.session, prompt_id) in confirmed else None)
            became = [
                what
                for what, holds in (
                    ("a turn", prompt_id in turns),
                    ("steered", prompt_id in steered),
                    (f"{fate}", fate in ("withdrawn", "discarded", "rejected") and prompt_id not in turns),
                    ("waiting", prompt_id in end.waiting),
                )
                if holds
            ]
            if accepted and not became:
                remark = f"fate {fate!r}" if fate else "neither a turn nor any fate"
                yield Violation(name, end.session, prompt_id, f"{_as_text(accepted)}: {remark}")
            elif len(became) > 1:
                yield Violation(name, end.session, prompt_id, f"it is {' and '.join(became)}")
            if fate in ("withdrawn", "discarded") and prompt_id in turns:
                yield Violation(name, end.session, prompt_id, f"it was {fate}, and is a turn all the same")


def accepted_prompts_are_not_rejected_later(evidence: Evidence) -> Iterator[Violation]:
    """A 202 is a promise: a prompt that was accepted is not rejected afterwards (SES-6)."""
    for end, prompts in _by_session(evidence):
        turns = {turn["id"] for turn in end.turns}
        for prompt_id, attempts in prompts.items():
            accepted = next((attempt for attempt in attempts if attempt.outcome == "ok"), None)
            if accepted and end.fates.get(prompt_id) == "rejected" and prompt_id not in turns:
                seen = f"{_as_text(accepted)}: rejected, {end.reasons.get(prompt_id)}"
                yield Violation("a 202 is not taken back", end.session, prompt_id, seen[: 2 * MAX_SHOWN])


def refused_prompts_become_nothing(evidence: Evidence) -> Iterator[Violation]:
    """A prompt of which every sending was refused, or never reached the gateway, is no turn."""
    for end, prompts in _by_session(evidence):
        became = {turn["id"] for turn in end.turns} | _steered(end) | set(end.waiting)
        for prompt_id, attempts in prompts.items():
            if prompt_id in became and all(attempt.outcome == "failed" for attempt in attempts):
                yield Violation("a refused prompt is no turn", end.session, prompt_id, _as_text(attempts[0]))


def prompts_are_one_turn_at_most(evidence: Evidence) -> Iterator[Violation]:
    """No prompt is two turns, however often it was sent, and every turn has the text of a prompt that was sent."""
    name = "a prompt is one turn at most"
    for end, prompts in _by_session(evidence):
        counts = Counter(turn["id"] for turn in end.turns)
        steered = Counter(step["message_id"] for turn in end.turns for step in _steps(turn) if step["kind"] == "user")
        for prompt_id, count in [*counts.items(), *steered.items()]:
            if count > 1:
                yield Violation(name, end.session, prompt_id, f"it is in the transcript {count} times")
        for turn in end.turns:
            attempts = prompts.get(turn["id"])
            if attempts is None:
                yield Violation(name, end.session, turn["id"], "nobody sent it")
            elif turn["user_message"] != attempts[0].text:
                evidence_text = f"sent {attempts[0].text!r}, recorded {turn['user_message']!r}"
                yield Violation(name, end.session, turn["id"], evidence_text[:MAX_SHOWN])


def turns_keep_the_order_of_acceptance(evidence: Evidence) -> Iterator[Violation]:
    """A prompt that was accepted before another one was first sent comes first; concurrent ones have no order.

    Prompts that interrupt or steer go before others by right.
    """
    for end, prompts in _by_session(evidence):
        latest: Attempt | None = None
        for turn in end.turns:
            attempts = prompts.get(turn["id"], [])
            if not attempts or any(attempt.mode != "enqueue" for attempt in attempts):
                continue
            accepted = min((one.answered_at for one in attempts if one.outcome == "ok"), default=None)
            if latest and accepted is not None and accepted < latest.asked_at:
                seen = f"accepted at {accepted}, and came after {latest.id!r}, first sent at {latest.asked_at}"
                yield Violation("turns keep the order of acceptance", end.session, turn["id"], seen)
            first = min(attempts, key=lambda one: one.asked_at)
            if latest is None or first.asked_at > latest.asked_at:
                latest = first


def prompts_are_answered(evidence: Evidence) -> Iterator[Violation]:
    """In the end nothing waits, and every turn is answered unless somebody cancelled it."""
    name = "every prompt is answered"
    for end, prompts in _by_session(evidence):
        for prompt_id in end.waiting:
            yield Violation(name, end.session, prompt_id, "it still waits in the queue")
        stops = sum(one.session == end.session and one.kind == "cancel" for one in evidence.actions)
        stops += sum(attempt.mode == "interrupt" for attempts in prompts.values() for attempt in attempts)
        cancelled = [turn for turn in end.turns if turn["status"] == "cancelled"]
        for turn in cancelled[stops:]:
            yield Violation(name, end.session, turn["id"], f"cancelled, and only {stops} times was that asked for")
        for turn in end.turns:
            if turn["status"] not in ("completed", "cancelled"):
                seen = f"{turn['status']} {turn.get('error_type')}: {turn.get('error')}"
                yield Violation(name, end.session, turn["id"], seen[:MAX_SHOWN])


# ---- tools


def at_most_once_tools_run_at_most_once(evidence: Evidence) -> Iterator[Violation]:
    """No call has its effect twice; one that is `ok` has had it once; and no effect is of an unknown call."""
    name = "an at-most-once tool runs at most once"
    runs = Counter(effect.key for effect in evidence.effects if effect.tool == AT_MOST_ONCE)
    recorded = set()
    for end in _readable(evidence):
        for call in calls_of(end, AT_MOST_ONCE):
            key, status = f"{end.session}/{call['id']}", status_of(call)
            recorded.add(key)
            if status == "ok" and runs[key] != 1:
                yield Violation(name, end.session, key, f"its result is ok, and it ran {runs[key]} times")
    readable = {end.session for end in _readable(evidence)}
    for key, count in runs.items():
        session = key.partition("/")[0]
        if count > 1:
            yield Violation(name, session, key, f"it ran {count} times")
        if key not in recorded and session in readable:
            yield Violation(name, session, key, "it ran, and the transcript has no such call")


def idempotent_tools_are_repeated_with_their_key(evidence: Evidence) -> Iterator[Violation]:
    """Every run of an idempotent tool has the key of a call that is in the transcript; one that is `ok` ran."""
    name = "an idempotent tool is repeated with its key"
    runs = Counter(effect.key for effect in evidence.effects if effect.tool == IDEMPOTENT)
    recorded = set()
    for end in _readable(evidence):
        for call in calls_of(end, IDEMPOTENT):
            key = f"{end.session}/{call['id']}"
            recorded.add(key)
            if status_of(call) == "ok" and not runs[key]:
                yield Violation(name, end.session, key, "its result is ok, and it never ran")
    readable = {end.session for end in _readable(evidence)}
    for key in sorted(runs.keys() - recorded):
        session = key.partition("/")[0]
        if session in readable:
            yield Violation(name, session, key, "it ran with a key of no call in the transcript")


def ended_turns_have_results(evidence: Evidence) -> Iterator[Violation]:
    """Every tool call of an ended turn has a result, and its id is unique in the session (AGT-7)."""
    name = "every call has one result"
    for end in _readable(evidence):
        calls = list(calls_of(end))
        for call_id, count in Counter(call["id"] for call in calls).items():
            if count > 1:
                yield Violation(name, end.session, call_id, f"it is in the transcript {count} times")
        for call in calls:
            if call["result"] is None:
                yield Violation(name, end.session, call["id"], "it has none")


# ---- clients


def copies_equal_the_transcript(evidence: Evidence) -> Iterator[Violation]:
    """A client's copy equals the end of the transcript in every field, and all of it if it was never reset."""
    for end in _readable(evidence):
        for copy in end.copies:
            for difference in _differences(copy, end):
                yield Violation("a client's copy equals the transcript", end.session, copy.name, difference)
            for problem in copy.problems:
                yield Violation("clients are sent what SES-12 and AGT-5 say", end.session, copy.name, problem)


def errors_are_typed(evidence: Evidence) -> Iterator[Violation]:
    """No answer has a 5xx status but the problems 503 and 504."""
    for error in evidence.untyped_errors:
        seen = f"{error.status} at {error.at}: {error.body}"
        yield Violation("no 5xx but typed 503 and 504", "", error.request, seen[:MAX_SHOWN])


# ---- sessions


def sessions_come_to_rest(evidence: Evidence) -> Iterator[Violation]:
    """After the last fault every session that has work makes progress, and in the end all are idle."""
    for end in evidence.sessions:
        if end.stalled is not None:
            seen = f"no progress for {end.stalled:.0f} s although work waited; status {end.status!r}"
            yield Violation("nothing is stuck after the last fault", end.session, end.session, seen)
        elif end.settled is None:
            seen = f"status {end.status!r}, {len(end.waiting)} waiting"
            yield Violation("all sessions are idle in the end", end.session, end.session, seen)


def histories_replay(evidence: Evidence) -> Iterator[Violation]:
    """Every history that was read replays with the current code."""
    for departure in evidence.replays.departures:
        yield Violation("every history replays", "", "", departure)


def sessions_can_be_read(evidence: Evidence) -> Iterator[Violation]:
    """In the end the gateway shows every session."""
    for end in evidence.sessions:
        if end.unreadable is not None:
            yield Violation("every session can be read in the end", end.session, end.session, end.unreadable)


def processes_do_not_crash(evidence: Evidence) -> Iterator[Violation]:
    """No process ends by a signal that the campaign did not send."""
    for crash in evidence.crashes:
        yield Violation("no process crashes", "", "", crash)


PROMISES: tuple[Promise, ...] = (
    accepted_prompts_have_one_fate,
    accepted_prompts_are_not_rejected_later,
    refused_prompts_become_nothing,
    prompts_are_one_turn_at_most,
    turns_keep_the_order_of_acceptance,
    prompts_are_answered,
    at_most_once_tools_run_at_most_once,
    idempotent_tools_are_repeated_with_their_key,
    ended_turns_have_results,
    copies_equal_the_transcript,
    errors_are_typed,
    sessions_come_to_rest,
    histories_replay,
    sessions_can_be_read,
    processes_do_not_crash,
)


def _by_session(evidence: Evidence) -> Iterator[tuple[SessionEnd, dict[str, list[Attempt]]]]:
    """Yield every session that can be read with its prompts, each with its sendings in order."""
    prompts: dict[str, dict[str, list[Attempt]]] = {}
    for attempt in evidence.attempts:
        prompts.setdefault(attempt.session, {}).setdefault(attempt.id, []).append(attempt)
    for end in _readable(evidence):
        yield end, prompts.get(end.session, {})


def _readable(evidence: Evidence) -> list[SessionEnd]:
    return [end for end in evidence.sessions if end.unreadable is None]


def _withdrawals(evidence: Evidence) -> set[tuple[str, str]]:
    return {
        (action.session, action.message_id)
        for action in evidence.actions
        if action.kind == "withdraw" and action.outcome == "ok"
    }


def _steps(turn: Turn) -> list[dict[str, Any]]:
    return (turn.get("reasoning_trajectory") or {}).get("steps", [])


def calls_of(end: SessionEnd, tool: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the calls of a session's turns; with `tool`, only those of it, whatever prefix it goes by."""
    for turn in end.turns:
        for step in _steps(turn):
            for call in step.get("tool_calls", ()):
                if tool is None or call["name"].rpartition("__")[2] == tool:
                    yield call


def status_of(call: dict[str, Any]) -> str | None:
    return call["result"]["status"] if call["result"] else None


def _steered(end: SessionEnd) -> set[str]:
    return {step["message_id"] for turn in end.turns for step in _steps(turn) if step["kind"] == "user"}


def _differences(copy: Copy, end: SessionEnd) -> Iterator[str]:
    expected = end.turns[-len(copy.turns) :] if copy.turns else []
    if end.turns and not copy.turns:
        yield f"it holds nothing of {len(end.turns)} turns"
    elif not copy.resets and len(copy.turns) != len(end.turns):
        yield f"it holds {len(copy.turns)} turns of {len(end.turns)} and was never reset"
    if [turn["id"] for turn in copy.turns] != [turn["id"] for turn in expected]:
        yield "its turns are not the last ones of the transcript, in their order"
    by_id = {turn["id"]: turn for turn in end.turns}
    for turn in copy.turns:
        true = by_id.get(turn["id"])
        if true is None:
            yield f"it holds turn {turn['id']!r}, which the transcript does not have"
        else:
            for path, actual, right in _unequal(turn, true):
                seen = f"turn {turn['id']!r}, {path}: it holds {actual!r}, the transcript has {right!r}"
                yield seen[: 2 * MAX_SHOWN]


def _unequal(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every field in which two JSON values differ, by its path.

    >>> list(_unequal({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}]}))
    [('a[1].b', 2, 4), ('c', 3, None)]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*one, *other]):
            yield from _unequal(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _unequal(mine, theirs, f"{path}[{index}]")
    elif one != other:
        yield path, one, other


def _as_text(attempt: Attempt) -> str:
    return f"sent at {attempt.asked_at}, answered {attempt.status or attempt.outcome} at {attempt.answered_at}"
