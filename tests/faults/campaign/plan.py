"""Which faults strike, when and for how long: drawn from a seed, the same seed giving the same plan."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

WEIGHTS: dict[str, float] = {
    "worker_a killed": 3,
    "worker_b killed": 3,
    "workers killed": 2,
    "gateway_a killed": 2,
    "gateway_b killed": 2,
    "temporal killed": 2,
    "all killed": 1,
    "worker_a frozen": 2,
    "worker_b frozen": 1,
    "workers frozen": 2,
    "gateway_a frozen": 1,
    "gateway_b frozen": 1,
    "worker_b cut": 2,
    "worker_b stalled": 2,
    "gateway_b cut": 2,
    "gateway_b stalled": 2,
    "worker_a replaced": 1,
    "worker_b replaced": 2,
    "archive locked": 2,
}
"""How often each kind of fault is drawn, beside the others. `replaced`: stopped by SIGTERM, then started again."""

DURATIONS: dict[str, tuple[float, float]] = {
    "killed": (0.0, 2.0),
    "frozen": (2.0, 10.0),
    "cut": (0.5, 4.0),
    "stalled": (1.0, 8.0),
    "replaced": (0.0, 0.5),
    "locked": (2.0, 6.0),
}
"""Seconds a fault lasts, minimum and maximum; for a kill, the time until the process is restarted."""

PAUSES = (0.5, 3.0)
"""Seconds between two faults."""

OVERLAP = 0.3
"""Share of the faults after which the campaign does not wait for the recovery."""

BURST_KINDS = frozenset({"workers killed", "workers frozen", "temporal killed"})
"""Faults in which a writer sends many prompts at once: the number of waiting prompts is then unknown."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault to come. `pause` is what passes before it; `probe`: its recovery is waited for."""

    kind: str
    seconds: float
    pause: float
    probe: bool

    @property
    def target(self) -> str:
        return self.kind.partition(" ")[0]

    @property
    def action(self) -> str:
        return self.kind.partition(" ")[2]


def faults(seed: int, *, kinds: frozenset[str] | None = None) -> Iterator[PlannedFault]:
    """Yield faults without end; `kinds`: only these. Each kind comes once before any comes twice."""
    chance = random.Random(seed)
    weights = {kind: weight for kind, weight in WEIGHTS.items() if kinds is None or kind in kinds}
    first = list(weights)
    chance.shuffle(first)
    while True:
        kind = first.pop() if first else chance.choices(list(weights), list(weights.values()))[0]
        shortest, longest = DURATIONS[kind.partition(" ")[2]]
        yield PlannedFault(
            kind,
            seconds=round(chance.uniform(shortest, longest), 2),
            pause=round(chance.uniform(*PAUSES), 2),
            probe=chance.random() >= OVERLAP,
        )
