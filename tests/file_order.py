"""The order in which files run: long ones early, and those whose tests mostly wait between those that work."""

from itertools import islice

import pytest

LONG = (
    "replay/test_tiny_limits.py",
    "faults/test_campaign.py",
    "clients/page/test_sessions.py",
    "faults/test_deletion_kills.py",
    "fuzz/test_fuzz.py",
    "api/history/test_archive.py",
    "faults/test_team_day.py",
    "replay/test_replay.py",
    "faults/test_task_kills.py",
    "ops/demo/test_demo.py",
    "clients/page/test_coming_back.py",
    "api/live/test_events_faults.py",
    "workflows/test_context.py",
    "faults/test_months.py",
    "clients/page/test_login.py",
    "workflows/test_parking.py",
    "api/temporal/test_committed_states.py",
    "workflows/turn/test_attempts.py",
    "workflows/test_continue_as_new.py",
    "faults/test_approval_kill.py",
    "faults/test_worker_kills.py",
    "api/history/test_deletion.py",
    "ops/local/test_write_ahead_log.py",
    "faults/test_parking_kill.py",
    "features/tasks/workflow/test_sub_tasks.py",
    "stores/partials/test_worker_kill.py",
    "clients/page/test_conversation.py",
    "api/history/test_forgotten_sessions.py",
    "workflows/test_archive.py",
    "faults/test_summary_kill.py",
    "clients/page/test_unavailable.py",
    "faults/test_committed_kills.py",
    "ops/local/test_recovery.py",
    "faults/test_law.py",
)
"""Each takes 10 to 70 s. About every second one waits most of that time: for kills to be noticed, or a time to pass."""

SHORT_BETWEEN = 4
"""Shorter files after each long one. Few enough that the last long one begins well before the end."""


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the long files spread among the others; a file's tests stay together.

    Processes take the files in this order. Waiting files cost no processor, so side by side they would leave it idle;
    and a long file that begins last would let all processes but one wait for its end.
    """
    files = dict[str, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    long = [files.pop(name) for name in (f"tests/{name}" for name in LONG) if name in files]
    others = iter(files.values())
    spread = [file for first in long for file in (first, *islice(others, SHORT_BETWEEN))]
    return [item for file in (*spread, *others) for item in file]
