"""Who follows a session from its beginning to its end: each keeps a copy, and comes back with its cursor."""

import random
from collections.abc import Sequence
from contextlib import aclosing

from tests.faults.campaign.calls import Calls
from tests.faults.campaign.evidence import Copy, Log
from tests.faults.campaign.law import FINAL_STATUSES, LawfulCopy, PartialAnswers
from tests.waiting import pass_time
from turnkeeper.clients.python.conversation import Conversation, PartialEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError

LEAVES = 0.01
"""Share of the events after which a watcher closes its connection and opens another one."""

RETRY_SECONDS = 0.5
MAX_WAIT_SECONDS = 10.0


class Watcher:
    """Follows the event stream by our own Python client, now at one gateway, now at another."""

    def __init__(self, session: str, urls: Sequence[str], log: Log, *, seed: str) -> None:
        self.session = session
        self.resets = 0
        self.problems: list[str] = []
        self._conversation = Conversation()
        self._partial_answers = PartialAnswers()
        self._urls = urls
        self._log = log
        self._chance = random.Random(seed)

    @property
    def revision(self) -> int:
        return self._conversation.revision

    @property
    def copy(self) -> Copy:
        turns = [turn.model_dump(mode="json") for turn in self._conversation.turns]
        problems = [*self.problems, *self._partial_answers.problems]
        return Copy(
            f"watcher of {self.session}", turns, self.resets, problems, answers_shown=self._partial_answers.judged
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with GatewayClient(self._chance.choice(self._urls)) as gateway:
                    await self._watch(gateway)
            except GatewayError as error:
                # A stream that is given up says something of the gateway; the copy is judged in the end anyway.
                self._log.note("watcher lost", session=self.session, error=str(error))
                await pass_time(RETRY_SECONDS)

    async def _watch(self, gateway: GatewayClient) -> None:
        async with aclosing(gateway.events(self.session, self._conversation.cursor, patience=5.0)) as events:
            async for event in events:
                if isinstance(event, PartialEvent):
                    self._partial_answers.grow(event.partial.model_dump())
                    if self._chance.random() < LEAVES:
                        return
                if isinstance(event, UpdateEvent):
                    turns = [*event.update.updated_messages, *event.update.new_messages]
                    self._partial_answers.judge([turn.model_dump(mode="json") for turn in turns])
                    self.resets += event.update.reset
                    self._conversation.apply(event.update)
                    if event.update.status in FINAL_STATUSES:
                        self.problems.append(f"the session was {event.update.status!r}")
                    if self._chance.random() < LEAVES:
                        return


class Poller:
    """Polls for updates with a wait, by plain HTTP; applies them by the rules of SES-12 as written here."""

    def __init__(self, session: str, clients: Sequence[Calls], *, seed: str) -> None:
        self.session = session
        self._clients = clients
        self._copy = LawfulCopy()
        self._chance = random.Random(seed)

    @property
    def revision(self) -> int:
        return int(self._copy.cursor.get("since_revision") or 0)

    @property
    def copy(self) -> Copy:
        return Copy(f"poller of {self.session}", self._copy.turns, self._copy.resets, self._copy.problems)

    async def run(self) -> None:
        """Poll until cancelled."""
        client, wait, path = self._chance.choice(self._clients), 0.0, f"/workflow/{self.session}/conversation"
        while True:
            reply = await client.send("GET", path, params={**self._copy.cursor, "wait": wait or None}, wait=wait)
            if reply.outcome != "ok":
                client = self._chance.choice(self._clients)
                await pass_time(RETRY_SECONDS)
                continue
            update = reply.body["conversation_update"]
            self._copy.apply(update)
            wait = 0.0 if update["has_more"] else self._chance.choice([0.1, 1.0, MAX_WAIT_SECONDS])
