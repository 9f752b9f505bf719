"""A whole campaign: the stack, load and faults, the wait until all is idle, and the evidence."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.faults.campaign import ending, histories, plan
from tests.faults.campaign.calls import Calls
from tests.faults.campaign.evidence import Evidence, Log
from tests.faults.campaign.faults import PROBE, Faults
from tests.faults.campaign.scripts import quick_script, script
from tests.faults.campaign.settling import settle
from tests.faults.campaign.stack import CampaignError, Stack
from tests.faults.campaign.watchers import Poller, Watcher
from tests.faults.campaign.writers import Writer
from turnkeeper.ops.local.processes import Program

SETTLE_SECONDS = 1_800.0
"""Bound of the time until all is idle after the last fault. Without progress it is over after a minute; with it, full
queues take as long as they take on a machine whose cores are taken."""

REPLAY_SECONDS = 300.0
"""No session's histories are replayed after that: of a long campaign they are a sample, and the report counts them."""

CLEAN_UP_SECONDS = 1_200.0
"""Extra seconds for the start and the stop."""

PROGRESS_SECONDS = 30.0

Say = Callable[[str], None]

SMALL_LIMITS = {"max_state_bytes": 120_000, "max_history_events": 400}
"""The limits of every second session: it archives and continues as new within a minute."""


@dataclass(frozen=True)
class Options:
    """`burst`: prompts of the largest burst. `kinds`: faults to draw from, None: all. `at_most` bounds their number."""

    minutes: float = 3.0
    sessions: int = 10
    seed: int = 1
    busy: bool = False
    burst: int = 200
    kinds: frozenset[str] | None = None
    at_most: int | None = None


async def run_campaign(options: Options, folder: Path, *, say: Say = lambda line: None) -> Evidence:
    """Run everything in the empty `folder`, and return the evidence; `say` receives the progress now and then.

    Raises:
        CampaignError: The campaign itself failed; nothing is known then.
    """
    log = Log(folder / "log.jsonl")
    try:
        # Everything within is bounded, and this is the bound of what is not.
        async with asyncio.timeout(options.minutes * 60 + 2 * SETTLE_SECONDS + CLEAN_UP_SECONDS):
            async with Stack(folder) as stack, _busy(folder, cores=(os.cpu_count() or 1) if options.busy else 0):
                await _play(options, stack, log, say)
    except TimeoutError as error:
        raise CampaignError("the campaign did not come to its end") from error
    finally:
        log.close()
    return log.evidence


async def _play(options: Options, stack: Stack, log: Log, say: Say) -> None:
    names = [f"s{number}" for number in range(options.sessions)]
    async with AsyncExitStack() as open_clients:
        clients = [Calls(url, log) for url in stack.urls]
        for client in clients:
            open_clients.push_async_callback(client.aclose)
        await _start_sessions(names, stack, clients[0], seed=options.seed)
        writers = [
            Writer(name, clients, log, seed=f"{options.seed} {name} writer", burst=options.burst) for name in names
        ]
        watchers = [Watcher(name, stack.urls, log, seed=f"{options.seed} {name} watcher") for name in names]
        pollers = {name: Poller(name, clients, seed=f"{options.seed} {name} poller") for name in names}
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(one.run()) for one in (*watchers, *pollers.values())]
            over = asyncio.Event()
            writing = [group.create_task(writer.run(over)) for writer in writers]
            group.create_task(_tell_progress(log, say, over))
            faults = Faults(stack, log, clients, on_burst=_one_after_the_other(writers))
            planned = plan.faults(options.seed, kinds=options.kinds)
            await faults.run(planned, seconds=options.minutes * 60, at_most=options.at_most)
            log.note("last fault is over")
            say("The last fault is over; all work is brought to its end, then checked.")
            over.set()
            await asyncio.gather(*writing)
            await _end(names, stack, clients, watchers, pollers, log)
            for task in following:
                task.cancel()


async def _start_sessions(names: Sequence[str], stack: Stack, client: Calls, *, seed: int) -> None:
    scripts = {PROBE: quick_script(), **{name: script(f"{seed} {name} script") for name in names}}
    for number, (name, played) in enumerate(scripts.items()):
        (stack.scripts / f"{name}.json").write_text(json.dumps(played))
        body = {"id": name, "model": f"offline:script/{name}", "tool_policy": {"*": "allow"}}
        reply = await client.send("POST", "/workflow", body={**body, "limits": SMALL_LIMITS if number % 2 else {}})
        if reply.outcome != "ok":
            raise CampaignError(f"session {name} could not be started: {reply}")


def _one_after_the_other(writers: Sequence[Writer]) -> Callable[[], None]:
    endless = cycle(writers)
    return lambda: next(endless).burst()


async def _tell_progress(log: Log, say: Say, over: asyncio.Event) -> None:
    while not over.is_set():
        accepted = {(one.session, one.id) for one in log.evidence.attempts if one.outcome == "ok"}
        say(f"{log.now() / 60:5.1f} min  {len(log.evidence.faults)} faults, {len(accepted)} prompts accepted")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), PROGRESS_SECONDS)


async def _end(
    names: Sequence[str],
    stack: Stack,
    clients: Sequence[Calls],
    watchers: Sequence[Watcher],
    pollers: dict[str, Poller],
    log: Log,
) -> None:
    """Wait until all is idle, and collect the evidence."""
    evidence, every = log.evidence, [*names, PROBE]
    standings = await settle(every, clients, pollers, seconds=SETTLE_SECONDS)
    log.note("settled")
    prompts: dict[str, list[str]] = {name: [] for name in every}
    for attempt in evidence.attempts:
        prompts[attempt.session].append(attempt.id)
    followers = {name: [watcher, pollers[name]] for name, watcher in zip(names, watchers, strict=True)}
    for name in every:
        end = await ending.read_session(
            name, clients[0], standings[name], followers.get(name, []), prompts=prompts[name]
        )
        evidence.sessions.append(end)
    evidence.effects += ending.read_effects(stack.effects)
    evidence.second_attempts = await histories.second_attempts(stack, names, log)
    evidence.replays = await histories.replay(stack, every, seconds=REPLAY_SECONDS)


@asynccontextmanager
async def _busy(folder: Path, *, cores: int) -> AsyncIterator[None]:
    """Keep cores busy with pointless work inside the block."""
    loops = [
        Program([sys.executable, "-c", "while True: pass"], log=folder / "logs" / "busy.log") for _ in range(cores)
    ]
    async with AsyncExitStack() as running:
        for loop in loops:
            running.push_async_callback(loop.kill)
            await loop.start()
        yield
