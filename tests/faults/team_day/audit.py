"""Compares the audit of each tenant with the changes that were accepted."""

from collections import Counter
from typing import Any

import httpx

from tests.faults.team_day.evidence import Change, Evidence
from tests.faults.team_day.people import Tenant

PERHAPS_DONE = ("accepted", "unknown", "failed")
"""Outcomes of changes that may have happened: a killed gateway can't write the outcome of its last second."""

NOT_COMPARED = ("log_in", "log_out", "login", "logout", "request", "create_key", "revoke_key")


async def read_audit(http: httpx.AsyncClient, tenant: Tenant) -> list[dict[str, Any]]:
    """Return all entries of a tenant, as its admin reads them."""
    admin = next(person for person in tenant.people if person.role == "admin")
    entries: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = {"limit": 200, **({"cursor": cursor} if cursor else {})}
        response = await http.get("/audit", params=params, headers=admin.headers, timeout=60.0)
        response.raise_for_status()
        page = response.json()
        entries += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None:
            return entries


def compare(evidence: Evidence, tenant: Tenant, entries: list[dict[str, Any]]) -> None:
    """Note a surprise for every accepted change that is not in the audit, and for every other entry."""
    by_outcome: dict[str, Counter[Change]] = {}
    for entry in entries:
        change = Change(tenant.name, entry["user"], entry["action"], entry["workflow_id"] or "")
        by_outcome.setdefault(entry["outcome"], Counter())[change] += 1
        if tenant.word in str(entry):
            evidence.surprise(f"the audit has a text: {entry}")
    perhaps = sum((by_outcome.get(outcome, Counter()) for outcome in PERHAPS_DONE), Counter[Change]())
    ours = Counter({change: count for change, count in evidence.accepted.items() if change.tenant == tenant.name})
    for change, count in (ours - perhaps).items():
        evidence.surprise(f"{count} accepted change(s) are missing in the audit: {change}")
    others = by_outcome.get("accepted", Counter()) - ours
    unexpected = [one for one in others if one not in evidence.uncertain and one.action not in NOT_COMPARED]
    for user in {change.user for change in unexpected}:
        changes = [change for change in unexpected if change.user == user]
        if len({change.session for change in changes}) > evidence.unresolved[user]:
            for change in changes:
                evidence.surprise(f"the audit has {others[change]} change(s) that nobody made: {change}")
