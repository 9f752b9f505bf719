"""Every field of the carried state survives a run and counts where it can grow."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tests.models.builders import NOW, session
from turnkeeper.features.tasks.session.allowance import TaskAllowance
from turnkeeper.features.tasks.session.task_state import FINDINGS_BYTES, ProgressReport, TaskInput
from turnkeeper.features.tasks.session_part import TasksState, tasks_of, with_task
from turnkeeper.models.session.messages import CarriedState, SessionInput
from turnkeeper.models.session.session import Session

MOMENT = "2026-01-01T00:00:00Z"
HISTORY = SessionInput().history.model_dump(mode="json")
LIMITS = SessionInput().limits.model_dump(mode="json")
TURN = {"id": "t6", "timestamp": MOMENT, "user_message": "Hi", "user_timestamp": MOMENT, "revision": 7}
STEP = {"kind": "model", "number": 1, "text": "Hm.", "timestamp": MOMENT}
FATE = {"id": "p0", "fate": "withdrawn", "at": MOMENT}
FOR_WINDOW = {"model": "offline:", "config": HISTORY}

TASKS: dict[str, Any] = TasksState.model_validate(
    {
        "own": {
            "percent": 50,
            "message": "Half",
            "findings": {"files": 3},
            "reported": {"task_id": "s1", "percent": 40},
            "condensed": {"condensed": 2},
            "condenses": "t6",
        },
        "started": {"started": 1, "tasks": [{"task_id": "s1.task-1", "call_id": "c1", "title": "Look"}]},
        "accounts": [{"turn": "t6", "caps": {"tokens": 9}, "portions": {"s1.task-1": {"granted": {"tokens": 2}}}}],
        "allowance": {"granted": {"tokens": 8}, "number": 3, "asking": 2},
    }
).model_dump(mode="json")
"""The state of the feature `tasks`."""

FULL: dict[str, Any] = {
    "created_at": MOMENT,
    "revision": 7,
    "request_count": 3,
    "usage": {"input_tokens": 5},
    "tasks_usage": {"input_tokens": 4},
    "usage_between_turns": {"input_tokens": 3},
    "ending": "enough",
    "moved_events": {"earlier": 6, "newest": 1},
    "today": "2026-11-28",
    "today_segment": 2,
    "transcript": {"turns": [{**TURN, "reasoning_trajectory": {"steps": [STEP]}}], "archived": 5, "copied": 1},
    "queue": {
        "waiting": [
            {"id": "p1", "text": "Also this", "received_at": MOMENT, "mode": "steer"},
            {"id": "p2", "text": "Next", "received_at": MOMENT},
            {"id": "p4", "text": "Last", "received_at": MOMENT},
        ],
        "parked": [["p3", 3, 4]],
        "before_parked": 2,
        "next_number": 4,
        "forgotten": 2,
        "taken_ids": ["p0"],
        "fates": [FATE],
        "leaving": [FATE],
    },
    "context": {
        "view": {
            "entries": [{"turn": "t6", "number": 6}],
            "segment": 2,
            "summary": {"text": "They counted.", "turns": [[1, 5]]},
        },
        "waiting": [{"turn": "t6", "number": 6, "step": 0}],
        "evicted_since": 1,
        "summaries_failed": 2,
        "given_up": 3,
        "cut": {"6": 14},
        "limit": {"tokens": 15, **FOR_WINDOW},
        "reported": {"tokens": 16, "chars": 60, "segment": 2},
        "limit_warned": True,
    },
    "tools": {
        "specs": [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}],
        "segment": 2,
        "due_turn": 8,
        "read_turn": 4,
        "allowances": ["look"],
        "denied": ["write"],
        "instructions": [{"server": "shop", "text": "Look first."}],
        "absent": [{"server": "mail", "text": "it did not start"}],
    },
    "refusals": {
        "model": "openai:m",
        "tools": "0123456789abcdef",
        "parts": [{"kind": "images", "reason": "the model does not read them"}],
        "accepted_tokens": 400,
        "state_was_refused": True,
        "was_reset": True,
    },
    "archive": {"report": {"results_cut": 1}, "again_at": MOMENT},
    "features": {"tasks": TASKS},
    "running": {
        "deadline": MOMENT,
        "model": "offline:",
        "limits": LIMITS,
        "history": HISTORY,
        "tools": ["look"],
        "tool_policy": {"look": "ask"},
        "system_prompt": "Count.",
        "awaiting_since": MOMENT,
        "has_blocked_task": True,
        "steps": 1,
        "calls": 1,
        "unsettled": True,
        "state": {"api": "offline", "model": "offline"},
        "segment": 2,
    },
}
"""A state with another value than the default in every field of every part."""


def defaulted(model: BaseModel, path: str = "") -> Iterator[str]:
    """Yield the fields of `model` and of its parts that have their default."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            yield f"{path}{name}"
        if isinstance(value, BaseModel) and type(value).__name__.endswith(("State", "Turn")):
            yield from defaulted(value, f"{path}{name}.")


def test_the_full_state_has_a_non_default_value_in_every_field() -> None:
    provider_state = {"running.state.items", "running.state.blob"}  # a vendor's own
    assert set(defaulted(CarriedState.model_validate(FULL))) == provider_state
    assert set(defaulted(TasksState.model_validate(TASKS))) == set()


def test_ses_14_every_field_that_is_carried_survives_a_run() -> None:
    state = CarriedState.model_validate(FULL)
    # A task of a tree: others have no allowance.
    start = with_task(SessionInput(carried=state), TaskInput(allowance=TaskAllowance(root="s0")))
    continued = Session("s1", start, now=NOW).carry()
    assert continued.carried == state
    assert SessionInput.model_validate_json(continued.model_dump_json()).carried == state


def test_ses_15_reported_findings_of_a_task_count_towards_its_sessions_size() -> None:
    target, findings = session(), {"text": "x" * 8_000}
    before = target.room.for_turn
    tasks_of(target).own.report(ProgressReport(findings=findings, message="Half", percent=50))
    assert 8_000 < before - target.room.for_turn < FINDINGS_BYTES + 200
