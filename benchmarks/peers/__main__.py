"""`make bench-peers`: runs the same conversations through Turnkeeper and other libraries, and writes the results.

It writes `samples.json`, and from it the last part of `benchmarks/RESULTS.md` and `docs/pictures/peers.svg`.
`BENCH_TOOL_CALLS` in the environment is the number of tool calls of a turn.
"""

import argparse
import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median_low

from temporalio.exceptions import TemporalError

from benchmarks.actions import actions_of, requested_actions, turns_of
from benchmarks.environment import bench_environment
from benchmarks.peers import recording, work
from benchmarks.peers.install import LibraryError
from benchmarks.peers.plot import PICTURE, plot
from benchmarks.peers.recording import Recording, SystemSamples
from benchmarks.peers.report import section
from benchmarks.peers.systems import (
    ON_TEMPORAL,
    OURS,
    HistorySession,
    Session,
    System,
    on_temporal,
    running_systems,
    turnkeeper,
)
from benchmarks.results import RESULTS, machine, with_peers
from benchmarks.throughput import turns_a_second
from turnkeeper.ops.local.process import run_to_end

TURNS, CONVERSATIONS = 100, 2
SESSIONS, RATES, RATE_TURNS = 32, 2, 10
"""Concurrent sessions, samples of their turns a second, and the first turns of each that make a sample."""

MODEL_SECONDS = 10.0
"""How long each of the four model calls takes of a turn whose heartbeats and queries are counted."""

COUNTED_TURN = 6
"""After this turn, a conversation's events are counted: before it continues as new."""


@dataclass
class Contender:
    """A system and its samples. It is left out once it has failed."""

    system: System
    samples: SystemSamples
    session: Session | None = None
    """The running conversation."""

    async def guarded(self, measurement: Callable[["Contender"], Awaitable[None]]) -> None:
        """Run the measurement, unless an earlier one has failed."""
        if self.samples.failure is None:
            try:
                await measurement(self)
            except (LibraryError, TemporalError, TimeoutError) as error:
                self.samples.failure = f"{type(error).__name__}: {error}"
                print(f"{self.system.name}: {self.samples.failure}", flush=True)

    async def begin(self) -> None:
        self.session = await self.system.start()
        self.samples.milliseconds.append([])
        self.samples.stored.append([])

    async def measure_turn(self) -> None:
        assert self.session
        seconds = await self.session.round()
        self.samples.milliseconds[-1].append(round(seconds * 1000, 1))
        self.samples.stored[-1].append(await self.session.stored_bytes())
        if isinstance(self.session, HistorySession):
            self.samples.runs = len(self.session.run_bytes)
            if self.session.rounds == COUNTED_TURN:
                await self._count_actions(self.session)

    async def _count_actions(self, session: HistorySession) -> None:
        """Count actions and events of a median turn, without the first one, which may load something."""
        turns = turns_of((await session.handle.fetch_history()).events)[1:]
        self.samples.actions = median_low(actions_of(turn).total() for turn in turns)
        self.samples.events = median_low(map(len, turns))

    async def measure_rate(self, sessions: int) -> None:
        crowd = [await self.system.start() for _ in range(sessions)]
        self.samples.rates.append(round(await turns_a_second(crowd, turns_each=RATE_TURNS), 2))


async def measure(options: argparse.Namespace) -> Recording:
    """Measure all systems in turn: concurrent sessions, then one conversation after the other, then slow turns.

    So a system that can't bear a long conversation has its other figures.
    """
    samples = dict[str, SystemSamples]()
    for number in range(1, options.rates + 1):
        async with _contenders(options, samples) as contenders:
            await _each(contenders, lambda contender: contender.measure_rate(options.sessions))
        print(f"Sample {number} of {options.rates} of concurrent sessions is measured", flush=True)
    for number in range(1, options.conversations + 1):
        async with _contenders(options, samples) as contenders:
            await _each(contenders, Contender.begin)
            order = deque(contenders)
            for _ in range(options.turns):
                await _each(order, Contender.measure_turn)
                order.rotate()  # what one leaves to do for the server affects all others equally
        print(f"Conversation {number} of {options.conversations} is measured", flush=True)
    libraries = {"": OURS, **ON_TEMPORAL}
    counts = await asyncio.gather(*map(_slow_actions, libraries), return_exceptions=True)
    for name, count in zip(libraries.values(), counts, strict=True):
        if isinstance(count, int):
            samples[name].slow_actions = count
        else:
            print(f"{name}: actions with slow model calls: {count!r}", flush=True)
    return Recording(machine(), work.TOOL_CALLS, options.sessions, options.on_file, list(samples.values()))


@asynccontextmanager
async def _contenders(options: argparse.Namespace, samples: dict[str, SystemSamples]) -> AsyncIterator[list[Contender]]:
    """Run all systems on a server of their own, which ends with what it has in memory: a conversation needs 0.6 GB."""
    async with (
        bench_environment(in_memory=not options.on_file) as environment,
        running_systems(environment, in_memory=not options.on_file) as (systems, failures),
    ):
        for system in systems:
            samples.setdefault(system.name, SystemSamples(system.name, system.versions))
        for name, reason in failures.items():
            samples.setdefault(name, SystemSamples(name)).failure = reason
        yield [Contender(system, samples[system.name]) for system in systems]


async def _slow_actions(library: str) -> int:
    """Return the actions of a library's second turn, whose model calls are slow, on a server of its own; "": ours."""
    async with bench_environment() as environment, AsyncExitStack() as stack:
        system = (
            await stack.enter_async_context(on_temporal(environment, library, model_seconds=MODEL_SECONDS))
            if library
            else turnkeeper(environment, model_seconds=MODEL_SECONDS)
        )
        session = await system.start()
        assert isinstance(session, HistorySession)
        requests = []
        for session.rounds in (1, 2):
            requests.append(await environment.requests())
            await session.send("")
            await asyncio.sleep(work.TOOL_CALLS * MODEL_SECONDS)
            await session.until_idle(pause=0.2)
        requested = requested_actions(requests[-1], await environment.requests())
        turn = turns_of((await session.handle.fetch_history()).events)[-1]
        return (actions_of(turn) + requested).total()


async def _each(contenders: Iterable[Contender], measurement: Callable[[Contender], Awaitable[None]]) -> None:
    for contender in contenders:
        await contender.guarded(measurement)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of a conversation, at least 10")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="concurrent sessions")
    parser.add_argument("--rates", type=int, default=RATES, help="samples with concurrent sessions")
    parser.add_argument("--on-file", action="store_true", help="all databases are on the disk")
    parser.add_argument("--print", action="store_true", help="print the results, and write nothing")
    return parser.parse_args()


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.ERROR)
    run = asyncio.run(measure(options))
    if run.systems[0].failure:
        sys.exit("Without Turnkeeper there is nothing to compare.")
    if options.print:
        print(section(run))
        return
    recording.save(run)
    RESULTS.write_text(with_peers(RESULTS.read_text(), section(run)))
    PICTURE.write_text(plot(run))


if __name__ == "__main__":
    run_to_end(main)
