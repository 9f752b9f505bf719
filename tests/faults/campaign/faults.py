"""Carries out a plan: one fault after the other, and how long each took to be recovered from."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tests.faults.campaign.calls import Calls
from tests.faults.campaign.evidence import Attempt, Fault, Log
from tests.faults.campaign.plan import BURST_KINDS, PlannedFault
from tests.faults.campaign.stack import Stack
from tests.waiting import pass_time

PROBE = "probe"
"""The session whose next prompt shows that everything works again; it is used for nothing else."""

PROBE_SECONDS = 20.0
"""A recovery that takes longer is no longer waited for: the next fault comes."""

TERM_SECONDS = 60.0
"""Bound of a stop by SIGTERM."""

PROCESSES = ("temporal", "worker_a", "worker_b", "gateway_a", "gateway_b")
GROUPS = {"workers": ("worker_a", "worker_b"), "all": PROCESSES}


class Faults:
    """Strikes. `on_burst` is called where a burst of prompts should meet the fault."""

    def __init__(self, stack: Stack, log: Log, clients: Sequence[Calls], *, on_burst: Callable[[], None]) -> None:
        self._stack = stack
        self._log = log
        self._clients = clients
        self._on_burst = on_burst
        self._probes = 0

    async def run(self, plan: Iterator[PlannedFault], *, seconds: float, at_most: int | None = None) -> None:
        """Carry out the plan for about `seconds`, or until `at_most` faults have struck; then nothing is amiss."""
        deadline = asyncio.get_running_loop().time() + seconds
        for number, planned in enumerate(plan, start=1):
            await pass_time(planned.pause)
            if asyncio.get_running_loop().time() > deadline:
                return
            self._log.evidence.crashes += await self._stack.start_what_ended()
            await self.strike(planned)
            if number == at_most:
                return

    async def strike(self, planned: PlannedFault) -> None:
        """Carry out one fault, up to its end or its recovery."""
        if planned.kind in BURST_KINDS:
            self._on_burst()
        began = self._log.now()
        self._log.note("fault begins", fault=planned.kind, seconds=planned.seconds)
        match planned.action:
            case "killed":
                remark = await self._kill(planned)
            case "frozen":
                remark = await self._freeze(planned)
            case "replaced":
                remark = await self._replace(planned)
            case "cut":
                remark = await self._cut(planned)
            case "stalled":
                remark = await self._stall(planned)
            case "locked":
                remark = await _lock(self._stack.archive, planned.seconds)
            case _:
                raise ValueError(f"{planned.kind!r} is no fault we know")
        # Of a kill, recovery counts from the kill: starting again is part of it.
        since = began if planned.action in ("killed", "replaced") else self._log.now()
        ended = self._log.now()
        recovered = await self._recovery(planned, since) if planned.probe else None
        self._log.add(Fault(planned.kind, began, ended, planned.probe, recovered, remark))

    async def _kill(self, planned: PlannedFault) -> str:
        struck = [name for name in _processes(planned) if self._signal(name, signal.SIGKILL)]
        await pass_time(planned.seconds)
        for name in struck:
            await self._stack.start(name)
        return f"{len(struck)} killed"

    async def _freeze(self, planned: PlannedFault) -> str:
        struck = [name for name in _processes(planned) if self._signal(name, signal.SIGSTOP)]
        try:
            await pass_time(planned.seconds)
        finally:
            for name in struck:
                self._signal(name, signal.SIGCONT)
        return f"{len(struck)} frozen for {planned.seconds} s"

    async def _replace(self, planned: PlannedFault) -> str:
        asked_at, name = self._log.now(), planned.target
        pid = self._signal(name, signal.SIGTERM)
        if pid is None:
            return "it did not run"
        try:
            await self._stack.ended(name, pid, seconds=TERM_SECONDS)
        except TimeoutError:
            self._signal(name, signal.SIGKILL)
            remark = f"not ended {TERM_SECONDS:.0f} s after SIGTERM, killed"
        else:
            remark = f"ended {self._log.now() - asked_at:.2f} s after SIGTERM"
        await self._stack.start(name)
        return remark

    async def _cut(self, planned: PlannedFault) -> str:
        proxy = self._stack.proxies[planned.target]
        await proxy.cut()
        await pass_time(planned.seconds)
        await proxy.restore()
        return f"away for {planned.seconds} s"

    async def _stall(self, planned: PlannedFault) -> str:
        proxy = self._stack.proxies[planned.target]
        proxy.stall()
        await pass_time(planned.seconds)
        proxy.resume()
        return f"silent for {planned.seconds} s"

    def _signal(self, name: str, number: signal.Signals) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            return self._stack.signal(name, number)
        return None

    async def _recovery(self, planned: PlannedFault, since: float) -> float | None:
        """Send the probe's next prompt until it is answered; return when that was, None if not within the bound."""
        self._probes += 1
        # The first gateway, unless the fault was the second one's.
        client = self._clients[planned.target == "gateway_b"]
        prompt = {"message": "Are you there?", "id": f"{PROBE}.{self._probes}"}
        path = f"/workflow/{PROBE}/prompt"
        deadline = asyncio.get_running_loop().time() + PROBE_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            asked_at = self._log.now()
            reply = await client.send("POST", path, body=prompt, params={"wait": 5}, wait=5)
            self._log.add(
                Attempt(
                    *(PROBE, prompt["id"], prompt["message"], asked_at, self._log.now(), reply.outcome),
                    status=reply.status,
                    problem=reply.problem,
                )
            )
            if reply.status == 200:
                return round(self._log.now() - since, 3)
            await pass_time(0.05)
        return None


def _processes(planned: PlannedFault) -> tuple[str, ...]:
    return GROUPS.get(planned.target, (planned.target,))


async def _lock(database: Path, seconds: float) -> str:
    """Hold the write lock of the archive, as another writer would."""
    try:
        connection = await asyncio.to_thread(_locked, database)
    except sqlite3.OperationalError as error:
        return f"not locked: {error}"
    # Closed in any case: that ends the transaction, and the lock.
    with closing(connection):
        await pass_time(seconds)
    return f"locked for {seconds} s"


def _locked(database: Path) -> sqlite3.Connection:
    """Return a connection that holds the write lock, once that is free."""
    # Not created: that is the product's affair.
    path = f"file:{database}?mode=rw"
    connection = sqlite3.connect(path, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        connection.close()
        raise
    return connection
