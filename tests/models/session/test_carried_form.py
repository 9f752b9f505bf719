"""What one run hands to the next is read in every form that was ever written (SES-14, SES-19)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.models.builders import NOW, answer_turn, send, session
from turnkeeper.models.session.carried_form import FLAT_FIELDS, FOR_EARLIER_RELEASES
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.turn.running_turn import CarriedTurn

HISTORIES = Path(__file__).parents[2] / "replay" / "histories"

COUNTED_BYTES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("counted_bytes.json").read_text())
"""What the last release with the flat form has counted of each state; a list: by rules 1, 2 and 3."""

MOMENT = "2026-01-01T00:00:00Z"
PROMPT = {"id": "p1", "text": "hi", "received_at": MOMENT}
FATE = {"id": "p0", "fate": "withdrawn", "at": MOMENT}
REF = {"turn": "t1", "number": 1}
TURN = {"id": "t1", "timestamp": MOMENT, "user_message": "Hi", "user_timestamp": MOMENT, "revision": 2}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
HISTORY = SessionInput().history.model_dump(mode="json")
TERMS = {"deadline": MOMENT, "model": "offline:", "limits": SessionInput().limits.model_dump(), "history": HISTORY}

FLAT: dict[str, tuple[Any, dict[str, Any]]] = {
    "request_count": (4, {"request_count": 4}),
    "usage": ({"input_tokens": 5}, {"usage": {"input_tokens": 5}}),
    "ending": ("enough", {"ending": "enough"}),
    "default_rules": (3, {"default_rules": 3}),
    "running": (TERMS, {"running": TERMS}),
    "moved_events": ({"earlier": 6}, {"moved_events": {"earlier": 6}}),
    "turns": ([TURN], {"transcript": {"turns": [TURN]}}),
    "archived_count": (7, {"transcript": {"archived": 7}}),
    "turn_count": (0, {}),
    "steering": ([PROMPT], {"queue": {"row": {"steering": [PROMPT]}}}),
    "waiting": ([PROMPT], {"queue": {"row": {"waiting": [PROMPT]}}}),
    "queue.parked": ([["p1", 1, 4]], {"queue": {"row": {"parked": [["p1", 1, 4]]}}}),
    "queue.behind": ([PROMPT], {"queue": {"row": {"behind": [PROMPT]}}}),
    "queue.next_number": (8, {"queue": {"row": {"next_number": 8}}}),
    "queue.forgotten": (9, {"queue": {"row": {"forgotten": 9}}}),
    "queue.leaving": ([FATE], {"queue": {"leaving": [FATE]}}),
    "taken_ids": (["p1"], {"queue": {"taken_ids": ["p1"]}}),
    "fates": ([FATE], {"queue": {"fates": [FATE]}}),
    "view": ([REF], {"context": {"view": {"entries": [REF]}}}),
    "segment": (10, {"context": {"view": {"segment": 10}}}),
    "context.waiting": ([REF], {"context": {"waiting": [REF]}}),
    "context.evicted_since": (11, {"context": {"evicted_since": 11}}),
    "context.summaries_failed": (12, {"context": {"summaries_failed": 12}}),
    "context.given_up": (13, {"context": {"given_up": 13}}),
    "context.cut": ({"1": 14}, {"context": {"cut": {"1": 14}}}),
    "context.halved": (
        {"cap": 6, "model": "offline:", "config": HISTORY},
        {"context": {"halved": {"cap": 6, "model": "offline:", "config": HISTORY}}},
    ),
    "context.limit": (
        {"tokens": 15, "model": "offline:", "config": HISTORY},
        {"context": {"limit": {"tokens": 15, "model": "offline:", "config": HISTORY}}},
    ),
    "context.reported": (
        {"tokens": 16, "chars": 60, "segment": 1},
        {"context": {"reported": {"tokens": 16, "chars": 60, "segment": 1}}},
    ),
    "limit_warned": (True, {"context": {"limit_warned": True}}),
    "tools": ([TOOL], {"tools": {"specs": [TOOL]}}),
    "tools_segment": (17, {"tools": {"segment": 17}}),
    "tools_due_turn": (18, {"tools": {"due_turn": 18}}),
    "tools_read_turn": (19, {"tools": {"read_turn": 19}}),
    "allowances": (["look"], {"tools": {"allowances": ["look"]}}),
    "archive": ({"results_cut": 20}, {"archive": {"report": {"results_cut": 20}}}),
    "archive_again_at": (MOMENT, {"archive": {"again_at": MOMENT}}),
}
"""Every optional field of the flat form: a value, and what the nested form has for it."""


def read(carried: object) -> CarriedState:
    state = SessionInput.model_validate({"carried": carried}).carried
    assert state is not None
    return state


@pytest.mark.parametrize("field", FLAT)
def test_ses_14_every_field_that_earlier_releases_carried_is_read(field: str) -> None:
    value, nested = FLAT[field]
    *parts, name = field.split(".")
    required = {"created_at": MOMENT, "revision": 1}
    counts = {"archived_count": {"turn_count": 7}, "turns": {"turn_count": 1}}.get(field, {})
    flat = {**required, **counts, **({parts[0]: {name: value}} if parts else {name: value})}
    state = read(flat)
    assert state == read({"state": {**required, **nested}})
    assert (state == read(required)) == (nested == {}), "the value is none that is left out"


def test_ses_14_the_table_of_earlier_fields_is_whole() -> None:
    assert {".".join(path) for path in FLAT_FIELDS} == {*FLAT, "created_at", "revision"} - {"turn_count"}


@pytest.mark.parametrize(
    "flat", [{"turn_count": 7}, {"turns": [TURN]}, {"queue": []}, {"context": 7}, {"tools": {}}, {"waiting": {}}]
)
def test_ses_10_what_no_release_carried_is_no_state(flat: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read({"created_at": MOMENT, "revision": 1, **flat})


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the inputs that runs of earlier releases received, from their recorded histories."""
    for path in sorted(HISTORIES.rglob("*.json")):
        started = json.loads(path.read_text())["events"][0]["workflowExecutionStartedEventAttributes"]
        for payload in started.get("input", {}).get("payloads", []):
            argument = json.loads(base64.b64decode(payload["data"]))
            if isinstance(argument, dict) and "state" not in (argument.get("carried") or {"state": None}):
                yield str(path.relative_to(HISTORIES)), argument


RECORDED = dict(recorded())


def flat_of(state: CarriedState) -> dict[str, Any]:
    """Return a state in the flat form, by reading the table backwards."""
    dumped = state.model_dump(mode="json")
    flat: dict[str, Any] = {"turn_count": state.transcript.count} if state.transcript.count else {}
    for (*flat_parts, flat_name), (*parts, name) in FLAT_FIELDS.items():
        source: Any = dumped
        for part in parts:
            source = source.get(part, {})
        target = flat
        if name in source:
            for part in flat_parts:
                target = target.setdefault(part, {})
            target[flat_name] = source[name]
    return flat


def test_ses_14_the_histories_with_flat_states_are_there() -> None:
    assert len(RECORDED) >= 46
    assert set(COUNTED_BYTES) == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_ses_14_nothing_of_a_recorded_state_is_lost(name: str) -> None:
    carried = dict(RECORDED[name]["carried"])
    state = read(carried)
    running = carried.pop("running", None)
    assert state.running == (None if running is None else CarriedTurn.model_validate(running))
    assert flat_of(state.model_copy(update={"running": None})) == carried


@pytest.mark.parametrize("name", RECORDED)
def test_ses_19_a_recorded_state_counts_the_bytes_that_its_run_has_decided_by(name: str) -> None:
    start = SessionInput.model_validate(RECORDED[name])
    handed_on = SessionInput.model_validate_json(start.model_dump_json())
    for index, rules in enumerate((1, 2, 3)):
        expected = {
            counter: value[index] if isinstance(value, list) else value
            for counter, value in COUNTED_BYTES[name].items()
        }
        assert counted(Session("s1", start, now=NOW, rules=rules)) == expected
        assert counted(Session("s1", handed_on, now=NOW, rules=rules)) == expected


def counted(target: Session) -> dict[str, Any]:
    """Return all sizes that decide what a run does, and what names the context that the model is shown."""
    return {
        "turn_room": target.room.for_turn,
        "turn_cap": target.room.turn_cap,
        "turn_bytes": target.turn.carried_bytes if target.turn else 0,
        "transcript": target.transcript.carried_bytes,
        "context": target.context.carried_bytes,
        "tools": target.tools.carried_bytes,
        "queued_texts": target.queue.row.text_bytes,
        "queued_rows": target.queue.row.id_bytes,
        "leaving": target.queue.leaving.bytes,
        "view": target.view.digest(target.head),
    }


@pytest.mark.parametrize("name", RECORDED)
def test_ses_14_the_nested_form_takes_no_more_than_is_allowed_for(name: str) -> None:
    start = SessionInput.model_validate(RECORDED[name])
    flat = json.dumps(RECORDED[name], separators=(",", ":"), ensure_ascii=False)
    assert len(start.model_dump_json()) - len(flat) < 512


def test_ses_19_a_worker_of_an_earlier_release_fails_its_task_over_the_nested_form() -> None:
    target = session()
    send(target, "hi", id="m1")
    answer_turn(target)
    carried = target.carry().model_dump(mode="json")["carried"]
    state = carried.pop("state")
    # All that such a worker knows: valid for it, with a reference to a turn that is not held.
    assert carried == FOR_EARLIER_RELEASES
    assert not state.keys() & {"turns", "archived_count", "view"}
    with pytest.raises(KeyError, match="newer release"):
        Session("s1", SessionInput(carried=read(carried)), now=NOW)
