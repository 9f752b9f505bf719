"""Long sessions that change vendors all the time: tools, images, steering, stops, refusals, summaries (AGT-3, AGT-9).

Everything that happens follows from a seed. The vendors are those of `tests/vendors/flavours`: each checks the whole
conversation, also the parts that others wrote.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client

from tests.faults.matrix.orders import LEARNED
from tests.faults.matrix.playing import (
    IMAGE,
    PAPER,
    PLAIN,
    Outcome,
    RowSession,
    fleet_environment,
    is_answered,
    unlearned,
)
from tests.vendors.flavours.flavours import FLAVOURS
from tests.vendors.flavours.fleet import Override
from tests.vendors.flavours.rules import Body
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.testing.vendor_server import Answer, Reply

HISTORY = {
    "max_messages": 24,
    "preserve_first_n": 1,
    "preserve_last_n": 6,
    "evict_block": 6,
    "summarize_on_trim": True,
}
TOOLS = ["look", "pay", "photo", "odd", "long"]


async def long_session(client: Client, *, seed: int, turns: int) -> Outcome:
    """Play a session of `turns` turns; the outcome has what was refused, and what was not learned from."""
    async with fleet_environment(client, PLAIN) as (fleet, env):
        line = fleet.line(f"seed{seed}", model_flavour="anthropic")
        start = {"model": line.model_of("anthropic"), "tool_policy": {"*": "allow"}, "history": HISTORY}
        run = RowSession(env, line, await env.start(SessionInput.model_validate(start)))
        player = _Player(run, random.Random(seed))
        problem = ""
        try:
            for number in range(turns):
                await player.turn(f"p{number}")
            line.override = None
            assert is_answered(await run.turn("last")), run.turns[-1].error
        except (AssertionError, TimeoutError) as error:
            problem = f"seed {seed}, {len(run.turns)} turns, {player.event}: {error or type(error).__name__}"[:1_500]
        refused = [exchange for exchange in line.refused if exchange.violation]
        foreign = [
            f"{exchange.flavour}: {exchange.violation.rule}: {exchange.violation.words[:200]}"
            for exchange in refused
            if exchange.violation and exchange.violation.rule not in LEARNED.get(exchange.flavour, ())
        ]
        if foreign and not problem:
            problem = f"seed {seed}: refused: {foreign}"
        return Outcome(f"{turns} turns, seed {seed}", "all", problem, False, len(refused), unlearned(line))


class _Player:
    """Chooses what happens in the turns of one session."""

    def __init__(self, run: RowSession, chance: random.Random) -> None:
        self._run = run
        self._chance = chance
        self.event = ""
        self._events: dict[str, tuple[int, Callable[[str], Awaitable[None]]]] = {
            "plain": (50, self._plain),
            "stopped": (12, self._stopped),
            "steered": (12, self._steered),
            "interrupted": (8, self._interrupted),
            "switched while it runs": (10, self._switched),
            "refused by the model": (5, self._ended(Answer(text="I can't", stop="refusal"))),
            "cut by its length": (5, self._ended(Answer(text="It is", stop="max_tokens"))),
            "empty": (3, self._ended(Answer())),
            "cut on the wire": (6, self._cut),
        }

    async def turn(self, tag: str) -> None:
        if self._chance.random() < 0.5:
            await self._switch()
        weights = [weight for weight, _ in self._events.values()]
        (self.event,) = self._chance.choices(list(self._events), weights)
        await self._events[self.event][1](tag)
        self._run.line.override = None

    async def _switch(self) -> None:
        flavour = self._chance.choice(list(FLAVOURS))
        self._run.line.model_flavour = flavour
        await self._run.switch(flavour)

    def _steps(self, least: int = 0) -> list[list[str]]:
        count = self._chance.randint(least, 3)
        return [self._chance.choices(TOOLS, k=self._chance.randint(1, 3)) for _ in range(count)]

    def _fields(self) -> dict[str, Any]:
        attachments = [one for one, share in ((IMAGE, 0.15), (PAPER, 0.05)) if self._chance.random() < share]
        return {"attachments": attachments, "think": self._chance.random() < 0.7}

    async def _plain(self, tag: str) -> None:
        turn = await self._run.turn(tag, *self._steps(), **self._fields())
        assert is_answered(turn), f"{turn.error_type}: {turn.error}"

    def _holding(self) -> asyncio.Event:
        """Hold the second answer of the next turn back until the event is set."""
        gate = asyncio.Event()
        line, flavour = self._run.line, self._run.line.model_flavour

        def override(body: Body, number: int) -> Reply | None:
            if number != 1:
                return None
            return line.render(Answer(text="A late answer."), body, flavour=flavour).behind(gate)

        self._override(override)
        return gate

    def _override(self, override: Override) -> None:
        self._run.line.override, self._run.line.overridden = override, 0

    async def _begin_and_hold(self, tag: str) -> asyncio.Event:
        gate = self._holding()
        await self._run.begin(tag, *self._steps(1), **self._fields())
        await self._run.until_overridden(2)
        return gate

    async def _stopped(self, tag: str) -> None:
        await self._begin_and_hold(tag)
        if self._chance.random() < 0.5:
            await self._switch()
        await self._run.session.update("cancel_turn", {"message_id": tag, "reason": "Not this."})
        await self._run.ended(tag)

    async def _steered(self, tag: str) -> None:
        gate = await self._begin_and_hold(tag)
        await self._run.begin(f"{tag}s", *self._steps(), mode="steer", **self._fields())
        gate.set()
        turn = await self._run.ended(tag)
        assert turn.error is None, turn.error

    async def _interrupted(self, tag: str) -> None:
        gate = await self._begin_and_hold(tag)
        turn = await self._run.turn(f"{tag}i", *self._steps(), mode="interrupt", **self._fields())
        gate.set()
        assert is_answered(turn), f"{turn.error_type}: {turn.error}"

    async def _switched(self, tag: str) -> None:
        gate = await self._begin_and_hold(tag)
        await self._switch()
        gate.set()
        turn = await self._run.ended(tag)
        assert turn.error is None, turn.error

    def _ended(self, answer: Answer) -> Callable[[str], Awaitable[None]]:
        async def ended(tag: str) -> None:
            self._override(lambda body, number: answer if number in (1, 2) else None)
            await self._run.turn(tag, *self._steps(1), **self._fields())

        return ended

    async def _cut(self, tag: str) -> None:
        def override(body: Body, number: int) -> Reply | None:
            return self._run.line.render(Answer(text="Half of"), body).cut_after(1) if number == 0 else None

        self._override(override)
        turn = await self._run.turn(tag, *self._steps(), **self._fields())
        assert is_answered(turn), f"{turn.error_type}: {turn.error}"
