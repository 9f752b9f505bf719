"""Turns a second of many sessions at once, and their CPU time; the model answers at once (OPS-11)."""

import asyncio
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Protocol

from benchmarks.environment import ARCHIVED_SECONDS, BenchEnvironment, GatewaySession, bench_environment, interleaved
from benchmarks.results import Row, row

SESSIONS, TURNS_EACH, SAMPLES = 32, 4, 3

CROWD, CROWD_TURNS_EACH = 128, 2
"""The sessions that one worker and one gateway share with two of each, and their turns in a sample."""

MODEL = "offline:script/four"


class Conversation(Protocol):
    """A session of whatever system."""

    async def round(self) -> float:
        """Return the seconds from a prompt until its answer is visible."""


async def turns_a_second(sessions: Sequence[Conversation], *, turns_each: int = TURNS_EACH) -> float:
    """Run turns of every session at the same time; return the turns per second of all sessions."""

    async def run_turns(session: Conversation) -> None:
        for _ in range(turns_each):
            await session.round()

    started_at = perf_counter()
    await asyncio.gather(*(run_turns(session) for session in sessions))
    return len(sessions) * turns_each / (perf_counter() - started_at)


async def throughput() -> list[Row]:
    """Measure 32 sessions beside 32 floor workflows, on a server in memory and on one with a file."""
    async with bench_environment(gateways=1) as environment, bench_environment(in_memory=False) as on_file:
        crowds = [
            [await environment.session("four") for _ in range(SESSIONS)],
            [await environment.floor(4) for _ in range(SESSIONS)],
            [await environment.session("searches") for _ in range(SESSIONS)],
            [await environment.floor(7) for _ in range(SESSIONS)],
            [await on_file.session("four") for _ in range(SESSIONS)],
        ]
        rates = await interleaved(SAMPLES, *(lambda crowd=crowd: turns_a_second(crowd) for crowd in crowds))  # type: ignore[misc]
        reads, four, searches, seven, files = map(median, rates)
        watched, unwatched = await _cpu_of_watching(environment)
    return [
        _rate(f"turns a second, {SESSIONS} sessions, quick reads", reads, four, at_least=0.75),
        _rate(f"turns a second, {SESSIONS} sessions, tools that are activities", searches, seven, at_least=0.8),
        _rate(
            f"turns a second, {SESSIONS} sessions, server with a file to server in memory", files, reads, at_least=0.7
        ),
        row(
            "CPU time of a turn, watched by one client, to one that nobody watches",
            f"{watched * 1000:.1f} ms",
            f"{unwatched * 1000:.1f} ms",
            watched / unwatched,
            at_most=1.25,
        ),
        *await _two_of_each(),
    ]


def _rate(what: str, ours: float, floor: float, *, at_least: float) -> Row:
    return row(what, f"{ours:.1f}", f"{floor:.1f}", ours / floor, at_least=at_least)


async def _cpu_of_watching(environment: BenchEnvironment) -> list[float]:
    """Return the CPU seconds of a turn of all processes, with a watcher and without; prompts come over HTTP."""
    crowds = [
        [await environment.gateway_session(MODEL, is_watched=is_watched) for _ in range(SESSIONS)]
        for is_watched in (True, False)
    ]

    async def cpu_of_turn(sessions: Sequence[GatewaySession]) -> float:
        await asyncio.sleep(ARCHIVED_SECONDS)
        before = environment.cpu_seconds()
        for _ in range(TURNS_EACH):
            await asyncio.gather(*(session.prompt() for session in sessions))
            await asyncio.gather(*(session.until_idle(pause=0.2) for session in sessions))
        return (environment.cpu_seconds() - before) / len(sessions) / TURNS_EACH

    samples = await interleaved(SAMPLES, *(lambda crowd=crowd: cpu_of_turn(crowd) for crowd in crowds))  # type: ignore[misc]
    for session in crowds[0]:
        assert session.events
        session.events.close()
    return [median(values) for values in samples]


async def _two_of_each() -> list[Row]:
    """Measure the same sessions with one worker and one gateway, and with two of each, on the same cores."""
    async with (
        bench_environment(gateways=1) as one,
        bench_environment(workers=2, gateways=2) as two,
    ):
        crowds = [
            [
                await environment.gateway_session(MODEL, is_watched=True, gateway=number % len(environment.gateways))
                for number in range(CROWD)
            ]
            for environment in (one, two)
        ]
        rates = await interleaved(
            SAMPLES,
            *(lambda crowd=crowd: turns_a_second(crowd, turns_each=CROWD_TURNS_EACH) for crowd in crowds),  # type: ignore[misc]
        )
    alone, together = map(median, rates)
    what = f"turns a second, {CROWD} watched sessions, 2 workers and 2 gateways to one of each"
    return [_rate(what, together, alone, at_least=1.0)]
