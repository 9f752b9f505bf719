"""The verdict for people, as a table, and for machines, as JSON."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tests.faults.campaign.checker import AT_MOST_ONCE, IDEMPOTENT, Violation, calls_of, status_of
from tests.faults.campaign.evidence import Evidence

MAX_SHOWN = 10
"""Violations of one promise that the table shows; the JSON has all."""


def figures(evidence: Evidence) -> dict[str, Any]:
    """Count what a campaign came to."""
    outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for attempt in evidence.attempts:
        outcomes[attempt.session, attempt.id].add(attempt.outcome)
    turns = {(end.session, turn["id"]): turn for end in evidence.sessions for turn in end.turns}
    sendings = Counter((attempt.session, attempt.id) for attempt in evidence.attempts)
    runs = Counter((effect.tool, effect.key) for effect in evidence.effects)
    pays = [
        (f"{end.session}/{call['id']}", status_of(call))
        for end in evidence.sessions
        for call in calls_of(end, AT_MOST_ONCE)
    ]
    unknown = [key for key, status in pays if status == "outcome_unknown"]
    settled = [end.settled for end in evidence.sessions if end.settled is not None]
    return {
        "prompts": {
            "accepted": sum("ok" in seen for seen in outcomes.values()),
            "refused": sum(seen == {"failed"} for seen in outcomes.values()),
            "unknown": sum("unknown" in seen and "ok" not in seen for seen in outcomes.values()),
            "unknown_that_are_turns": sum(
                "ok" not in seen and "unknown" in seen and key in turns for key, seen in outcomes.items()
            ),
            "sent_more_than_once": sum(count > 1 for count in sendings.values()),
        },
        "turns": dict(Counter(turn["status"] for turn in turns.values())),
        "fates_without_turn": dict(
            Counter(fate for end in evidence.sessions for fate in end.fates.values() if fate != "started")
        ),
        "at_most_once": {
            "calls": len(pays),
            "effects": sum(effect.tool == AT_MOST_ONCE for effect in evidence.effects),
            "outcome_unknown": len(unknown),
            "of_these_had_run": sum(runs[AT_MOST_ONCE, key] for key in unknown),
        },
        "idempotent": {
            "keys": sum(tool == IDEMPOTENT for tool, _ in runs),
            "repeated": sum(count > 1 for (tool, _), count in runs.items() if tool == IDEMPOTENT),
        },
        "clients": {
            "copies": sum(len(end.copies) for end in evidence.sessions),
            "resets": sum(copy.resets for end in evidence.sessions for copy in end.copies),
            "answers_shown": sum(copy.answers_shown for end in evidence.sessions for copy in end.copies),
        },
        "replayed": {"runs": evidence.replays.runs, "sessions": evidence.replays.sessions},
        "idle_after_last_fault": _spread(settled),
        "second_attempt_after_kill": {"n": len(evidence.second_attempts), **_spread(evidence.second_attempts)},
        "faults": dict(_recoveries(evidence)),
    }


def table(evidence: Evidence, broken_promises: Sequence[Violation], title: str) -> str:
    """Return the report as text: figures, recovery by kind of fault, then what is broken."""
    counted = figures(evidence)
    lines = [title, ""]
    for name, value in counted.items():
        if name != "faults":
            text = ", ".join(f"{key} {one}" for key, one in value.items())
            lines.append(f"  {name.replace('_', ' '):<28}{text.replace('_', ' ')}")
    lines += ["", f"  {'fault':<22}{'n':>4}{'next answer p50':>18}{'max':>8}{'not within bound':>18}"]
    for kind, one in counted["faults"].items():
        median, longest = _seconds(one["p50"]), _seconds(one["max"])
        lines.append(f"  {kind:<22}{one['n']:>4}{median:>18}{longest:>8}{one['late'] or '-':>18}")
        lines += [f"      {remark}" for remark in one["remarks"]]
    lines.append("")
    by_promise: dict[str, list[Violation]] = defaultdict(list)
    for violation in broken_promises:
        by_promise[violation.promise].append(violation)
    for promise, broken in by_promise.items():
        lines.append(f"  BROKEN {len(broken)} times: {promise}")
        lines += [f"      {one.session} {one.subject}: {one.evidence}" for one in broken[:MAX_SHOWN]]
    lines.append(f"  {len(broken_promises)} violations" if broken_promises else "  ok  every promise was kept")
    return "\n".join(lines)


def as_json(evidence: Evidence, broken_promises: Sequence[Violation], **about: Any) -> dict[str, Any]:
    """Return the report for machines: what was run, the figures, every fault and every violation."""
    return {
        **about,
        "kept": not broken_promises,
        **figures(evidence),
        "violations": [asdict(violation) for violation in broken_promises],
        "every_fault": [asdict(fault) for fault in evidence.faults],
    }


def _recoveries(evidence: Evidence) -> Iterator[tuple[str, dict[str, Any]]]:
    kinds = dict.fromkeys(sorted(fault.kind for fault in evidence.faults))
    for kind in kinds:
        faults = [fault for fault in evidence.faults if fault.kind == kind]
        seconds = [fault.recovered for fault in faults if fault.recovered is not None]
        remarks = [fault.remark for fault in faults if "SIGTERM" in fault.remark]
        late = sum(fault.probed and fault.recovered is None for fault in faults)
        yield kind, {"n": len(faults), **_spread(seconds), "late": late, "remarks": remarks}


def _spread(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"p50": None, "max": None}
    return {"p50": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)}


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
