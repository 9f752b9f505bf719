"""Who sends prompts to a session, and everything else that people do to it."""

import asyncio
import random
from collections.abc import Sequence
from itertools import count
from typing import Any

from tests.faults.campaign.calls import Calls, Reply
from tests.faults.campaign.evidence import Action, Attempt, Log, Mode
from tests.waiting import pass_time

DOINGS = {
    "one prompt": 40,
    "the same prompt twice at once": 10,
    "prompts from two clients in turn": 12,
    "a burst": 8,
    "steer": 7,
    "interrupt": 4,
    "cancel": 4,
    "withdraw": 6,
}
"""A writer's next action, by weight."""

RETRIES = 8
"""How often a prompt whose outcome is unknown is sent again, most times."""

AT_ONCE = 20
"""Requests of a burst that are under way at the same time."""

PAUSES = (0.05, 1.5)
MAX_WAITING = 5
"""Prompts in the queue beyond which a writer holds back."""

MAX_HONOURED_SECONDS = 5.0
"""Longest wait in seconds for a Retry-After."""


class Writer:
    """One session's writer, with a client at each gateway."""

    def __init__(self, session: str, clients: Sequence[Calls], log: Log, *, seed: str, burst: int) -> None:
        self.session = session
        self._clients = clients
        self._log = log
        self._chance = random.Random(seed)
        self._burst = burst
        self._numbers = count(1)
        self._path = f"/workflow/{session}"
        self._burst_wanted = asyncio.Event()

    async def run(self, until: asyncio.Event) -> None:
        """Send until the event is set; what is under way then is brought to its end."""
        while not until.is_set():
            doing = self._chance.choices(list(DOINGS), list(DOINGS.values()))[0]
            if self._burst_wanted.is_set():
                self._burst_wanted.clear()
                doing = "a burst"
            await self._do(doing)
            await self._rest(until)

    def burst(self) -> None:
        """Request a burst as the next action."""
        self._burst_wanted.set()

    async def _rest(self, until: asyncio.Event) -> None:
        """Pause, and continue only once few prompts wait or a burst is due: sessions should be idle now and then."""
        await self._pause(self._chance.uniform(*PAUSES))
        while not until.is_set() and not self._burst_wanted.is_set():
            reply = await self._chance.choice(self._clients).send("GET", self._path)
            if reply.outcome == "ok" and (reply.body.get("queue_length") or 0) <= MAX_WAITING:
                return
            await self._pause(1.0)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not while a burst is wanted."""
        try:
            await asyncio.wait_for(self._burst_wanted.wait(), seconds)
        except TimeoutError:
            return

    async def _do(self, doing: str) -> None:
        client = self._chance.randrange(2)
        match doing:
            case "one prompt":
                await self._prompt("one", client)
            case "the same prompt twice at once":
                prompt_id = self._new_id("dup")
                await asyncio.gather(*(self._send(prompt_id, number) for number in (0, 1)))
            case "prompts from two clients in turn":
                for number in range(4):
                    await self._prompt("turn", number % 2)
            case "a burst":
                await self._send_burst(self._chance.randint(min(20, self._burst), self._burst))
            case "steer" | "interrupt" as mode:
                await self._prompt("one", client)
                await pass_time(self._chance.uniform(0, 0.5))
                await self._prompt(mode, client, mode=mode)
            case "cancel":
                await self._cancel(await self._prompt("one", client), client)
            case "withdraw":
                prompts = [await self._prompt("one", client) for _ in range(3)]
                await self._withdraw(prompts[-1], client)

    async def _send_burst(self, size: int) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await self._prompt("burst", number % 2)

        await asyncio.gather(*(one(number) for number in range(size)))

    async def _prompt(self, kind: str, client: int, *, mode: Mode = "enqueue") -> str:
        """Send a prompt, again and again while its outcome is unknown: mostly, for some people give up."""
        prompt_id = self._new_id(kind)
        reply = await self._send(prompt_id, client, mode=mode)
        tries = self._chance.randint(1, RETRIES) if self._chance.random() < 0.9 else 0
        for number in range(tries):
            if reply.outcome == "ok" or (reply.status is not None and reply.status < 500):
                break
            await pass_time(min(2.0, 0.2 * 2**number))
            reply = await self._send(prompt_id, (client + number + 1) % 2, mode=mode)
        return prompt_id

    async def _send(self, prompt_id: str, client: int, *, mode: Mode = "enqueue") -> Reply:
        asked_at, text = self._log.now(), f"This is prompt {prompt_id}."
        body = {"message": text, "id": prompt_id, "mode": mode}
        reply = await self._clients[client].send("POST", f"{self._path}/prompt", body=body)
        self._log.add(
            Attempt(
                *(self.session, prompt_id, text, asked_at, self._log.now(), reply.outcome, mode),
                client=f"client {client}",
                status=reply.status,
                problem=reply.problem,
            )
        )
        if reply.status == 429:
            await pass_time(min(reply.retry_after, MAX_HONOURED_SECONDS))
        return reply

    async def _cancel(self, prompt_id: str, client: int) -> None:
        await pass_time(self._chance.uniform(0, 0.5))
        # Half of the times whatever is running is meant.
        named: dict[str, Any] = {"message_id": prompt_id} if self._chance.random() < 0.5 else {}
        asked_at = self._log.now()
        reply = await self._clients[client].send("POST", f"{self._path}/cancel", body=named)
        self._log.add(Action(self.session, "cancel", asked_at, reply.outcome, prompt_id, reply.status))

    async def _withdraw(self, prompt_id: str, client: int) -> None:
        asked_at = self._log.now()
        reply = await self._clients[client].send("DELETE", f"{self._path}/queue/{prompt_id}")
        self._log.add(Action(self.session, "withdraw", asked_at, reply.outcome, prompt_id, reply.status))

    def _new_id(self, kind: str) -> str:
        return f"{self.session}.{kind}.{next(self._numbers)}"
