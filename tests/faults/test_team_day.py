"""A short day of a team, as part of every run in CI; `make team-day` has the long ones (API-4)."""

import pytest

from tests.faults.team_day.audit import compare
from tests.faults.team_day.day import Options, run_day
from tests.faults.team_day.evidence import Evidence
from tests.faults.team_day.people import Tenant
from tests.ops.conftest import needs_linux
from tests.processes.forked import forked_commands

SHORT = Options(minutes=0.1, people=4, events=("new key", "gateway killed", "removal"))
"""An admin, an approver, a writer and a reader in each of three tenants, all by HTTP."""


@needs_linux
async def test_api_4_a_day_of_three_tenants_exceeds_no_permissions(tmp_path):
    with forked_commands():  # `make team-day` executes them
        evidence = await run_day(SHORT, tmp_path)
    assert evidence.surprises == []
    assert len(evidence.events) == len(SHORT.events)
    for action in ("start", "prompt", "intrude", "overstep"):
        assert any(key[1] == action for key in evidence.outcomes), action


@pytest.fixture
def evidence() -> Evidence:
    evidence = Evidence([Tenant.of("acme", size=4), Tenant.of("globex", size=4)])
    for tenant in evidence.tenants:
        for person in tenant.people:
            person.key = f"tk_{person.name}_secret of {person.name}"
    return evidence


def test_api_4_another_tenants_secret_or_any_key_is_a_surprise(evidence):
    acme, globex = evidence.tenants
    person = acme.people[0]
    evidence.check_text(person, f"our own {acme.word}", "an answer")
    assert evidence.surprises == []
    evidence.check_text(person, f"theirs: {globex.word}", "an answer")
    evidence.check_text(person, f"a key: {acme.people[1].key}", "an answer")
    assert evidence.surprises == [
        "acme-admin-0 received a text of globex in an answer",
        "acme-admin-0 received a key in an answer",
    ]


@pytest.mark.parametrize(
    ("outcomes", "surprise"),
    [
        (["accepted"], None),
        (["unknown"], None),  # the gateway was killed before it wrote the outcome
        ([], "1 accepted change(s) are missing in the audit"),
        (["refused"], "1 accepted change(s) are missing in the audit"),
        (["accepted", "accepted"], "the audit has 1 change(s) that nobody made"),
    ],
)
def test_api_4_the_audit_has_each_accepted_change_once(evidence, outcomes, surprise):
    acme = evidence.tenants[0]
    evidence.accept(acme.people[0], "prompt", "s1")
    entry = {"user": acme.people[0].name, "action": "prompt", "workflow_id": "s1"}
    compare(evidence, acme, [{**entry, "outcome": outcome} for outcome in outcomes])
    assert [text.partition(":")[0] for text in evidence.surprises] == ([surprise] if surprise else [])


def test_api_4_a_prompts_text_in_the_audit_is_a_surprise(evidence):
    acme = evidence.tenants[0]
    entry = {"user": "Ada", "action": "prompt", "workflow_id": "s1", "outcome": "refused", "message_id": acme.word}
    compare(evidence, acme, [entry])
    assert [text.partition(":")[0] for text in evidence.surprises] == ["the audit has a text"]
