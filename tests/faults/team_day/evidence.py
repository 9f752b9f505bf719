"""The record of the day: accepted changes, and everything that must not happen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.team_day.people import Person, Tenant


@dataclass(frozen=True)
class Change:
    """A change that a person asked for, as the audit has it."""

    tenant: str
    user: str
    action: str
    session: str


@dataclass
class Evidence:
    """`accepted`: answered with success. `uncertain`: without a response. `surprises`: what must not happen."""

    tenants: Sequence[Tenant]
    accepted: Counter[Change] = field(default_factory=Counter)
    uncertain: set[Change] = field(default_factory=set)
    unresolved: Counter[str] = field(default_factory=Counter)
    """By person: commands that may have sent a prompt to a new session, and did not say to which."""
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By way (http, terminal, page), action and outcome."""
    events: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    def surprise(self, text: str) -> None:
        self.surprises.append(text)

    def count(self, way: str, action: str, outcome: object) -> None:
        self.outcomes[way, action, str(outcome)] += 1

    def accept(self, person: Person, action: str, session: str) -> None:
        self.accepted[Change(person.tenant, person.name, action, session)] += 1

    def doubt(self, person: Person, action: str, session: str) -> None:
        self.uncertain.add(Change(person.tenant, person.name, action, session))

    def check_text(self, person: Person, text: str, source: str) -> None:
        """Note a surprise if `text`, which the person received, has another tenant's word or somebody's key."""
        for tenant in self.tenants:
            if tenant.name != person.tenant and tenant.word in text:
                self.surprise(f"{person.name} received a text of {tenant.name or 'the default tenant'} in {source}")
            if any(other.key and other.key in text for other in tenant.people):
                self.surprise(f"{person.name} received a key in {source}")
