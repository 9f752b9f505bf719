"""Whatever a model's vendor does, its session answers within its next two turns (AGT-3, AGT-9).

The ordinary test run plays about 40 rows and a session of 15 turns; wide tests play all rows and long sessions.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

import pytest
from temporalio.client import Client

from tests.faults.matrix.conftest import PROPERTY
from tests.faults.matrix.long_sessions import long_session
from tests.faults.matrix.playing import Outcome, Row, played
from tests.faults.matrix.rows import all_rows, batches, sample

BATCHES = [
    pytest.param(rows, marks=marks, id=f"{name} {number}: {rows[0].id}")
    for name, chosen, marks in (("sample", sample(), ()), ("all", all_rows(), pytest.mark.wide))
    for number, rows in enumerate(batches(chosen))
]
SESSIONS = [(1, 15), *(pytest.param(seed, 60, marks=pytest.mark.wide) for seed in range(1, 13))]

Record = Callable[[str, object], None]


def check(outcomes: Sequence[Outcome], record_property: Record) -> None:
    record_property(PROPERTY, json.dumps([asdict(outcome) for outcome in outcomes]))
    assert [outcome for outcome in outcomes if outcome.problem or outcome.is_ended or outcome.unlearned] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", BATCHES)
async def test_agt_9_a_session_recovers_within_two_turns_from_any_fault(
    temporal: Client, batch: list[Row], record_property: Record
) -> None:
    check(await played(temporal, batch), record_property)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "turns"), SESSIONS)
async def test_agt_3_a_long_session_with_all_vendors_sends_valid_requests(
    temporal: Client, seed: int, turns: int, record_property: Record
) -> None:
    check([await long_session(temporal, seed=seed, turns=turns)], record_property)


def test_agt_9_the_matrix_has_rows_for_every_vendor() -> None:
    rows = all_rows()
    assert len(rows) >= 450
    assert len({(row.id, row.flavour) for row in rows}) == len(rows)
