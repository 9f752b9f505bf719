"""The plan of a day: everybody works, while keys are rotated, a person is removed, and services are killed."""

import asyncio
import json
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import httpx
from playwright.async_api import Browser

from tests.clients.page.conftest import launched
from tests.faults.team_day.audit import compare, read_audit
from tests.faults.team_day.by_http import REVOKED_SECONDS, STREAM_END_SECONDS, HttpPerson, pause
from tests.faults.team_day.by_page import PagePerson
from tests.faults.team_day.by_terminal import TerminalPerson
from tests.faults.team_day.evidence import Evidence
from tests.faults.team_day.people import TENANTS, Person, Tenant
from tests.faults.team_day.services import Services, ServicesError
from turnkeeper.features.access.tables import ApiKeys
from turnkeeper.stores.stores import Stores

PAGE_PERSON, TERMINAL_PERSON = 4, 5
"""The places of those who work on the page and in the terminal among a tenant's people; both are writers."""

Event = Literal["new key", "removal", "gateway killed", "worker killed", "gateway stopped", "worker stopped"]

EVENTS: Sequence[Event] = (
    *("new key", "gateway killed", "new key", "removal", "worker killed"),
    *("new key", "gateway stopped", "new key", "worker stopped"),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """`people`: of each tenant; the fifth works on the page and the sixth in the terminal. `events`: in their order."""

    minutes: float = 30.0
    people: int = 10
    seed: int = 1
    events: Sequence[Event] = EVENTS


async def run_day(options: Options, folder: Path, *, say: Say = lambda line: None) -> Evidence:
    """Run a day in the empty `folder`, and return what happened. Raises `ServicesError`."""
    tenants = [Tenant.of(name, size=options.people) for name in TENANTS]
    async with AsyncExitStack() as running:
        services = await running.enter_async_context(Services(folder))
        browser = await running.enter_async_context(launched()) if options.people > PAGE_PERSON else None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        client = httpx.AsyncClient(base_url=services.gateway.url, limits=limits, trust_env=False)
        http = await running.enter_async_context(client)
        await _create_first_keys(services, tenants)
        day = Day(options, services, tenants, http, Evidence(tenants), say)
        await day.run(browser)
        return day.evidence


async def _create_first_keys(services: Services, tenants: Sequence[Tenant]) -> None:
    async with Stores.of(services.settings) as stores:
        for tenant in tenants:
            for person in tenant.people:
                _, person.key = await ApiKeys(stores.database).create(
                    tenant=tenant.name, user=person.name, role=person.role, now=datetime.now(UTC)
                )


@dataclass
class Day:
    """One day. `evidence` grows."""

    options: Options
    services: Services
    tenants: Sequence[Tenant]
    http: httpx.AsyncClient
    evidence: Evidence
    say: Say

    async def run(self, browser: Browser | None) -> None:
        over = asyncio.Event()
        workers = [self._http_person(tenant, person) for tenant in self.tenants for person in tenant.people]
        async with asyncio.TaskGroup() as group:
            for tenant in self.tenants:
                first = next(worker for worker in workers if worker.person is tenant.people[0])
                await first.start_session()
            for worker in workers:
                group.create_task(self._work(worker, browser, over))
            try:
                await self._events()
            finally:
                over.set()
        for tenant in self.tenants:
            compare(self.evidence, tenant, await read_audit(self.http, tenant))
        self._check_logs()

    async def _work(self, worker: HttpPerson, browser: Browser | None, over: asyncio.Event) -> None:
        place = worker.tenant.people.index(worker.person)
        if place == PAGE_PERSON and browser:
            url = self.services.gateway.url
            await PagePerson(worker.person, worker.tenant, url, browser, self.evidence).run(over)
        elif place == TERMINAL_PERSON:
            await TerminalPerson(worker.person, worker.tenant, self.services, self.evidence).run(over)
        elif worker.person.role == "reader":
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run(over))
                group.create_task(worker.stream(over))
        else:
            await worker.run(over)

    def _http_person(self, tenant: Tenant, person: Person) -> HttpPerson:
        return HttpPerson(person, tenant, self.http, self.evidence, seed=f"{self.options.seed} {person.name}")

    async def _events(self) -> None:
        """Play the day's events at equal distances."""
        chance = random.Random(self.options.seed)
        distance = self.options.minutes * 60 / (len(self.options.events) + 1)
        for event in self.options.events:
            await pause(distance)
            self.evidence.events.append(await self._play(event, chance))
            self.say(f"{self.evidence.events[-1]}; {sum(self.evidence.accepted.values())} changes were accepted so far")
        await pause(distance)

    async def _play(self, event: Event, chance: random.Random) -> str:
        """Run an event; return it as a sentence."""
        tenant = chance.choice(list(self.tenants))
        match event:
            case "new key":
                return await self._rotate_a_key(chance.choice([one for one in tenant.people if not one.is_leaving]))
            case "removal":
                return await self._remove(tenant, tenant.people[-1])
            case "gateway killed" | "worker killed" | "gateway stopped" | "worker stopped":
                service, how = event.split()
                await self.services.restart(service, signal.SIGKILL if how == "killed" else signal.SIGTERM)
                return f"the {service} was {how} and started again"

    async def _rotate_a_key(self, person: Person) -> str:
        """Rotate a person's key with our commands."""
        options = ["--role", person.role, "--user", person.name]
        options += ["--tenant", person.tenant] if person.tenant else []
        new = await self._key_command("create", *options)
        old, old_id = person.key, person.key_id
        person.key = new["key"]
        await self._key_command("revoke", old_id)
        await self._check_revoked(person.name, old)
        return f"{person.name} has a new key"

    async def _remove(self, tenant: Tenant, person: Person) -> str:
        """Revoke the only key of somebody who has a stream open."""
        session = await self._http_person(tenant, tenant.people[0]).start_session() or tenant.sessions[-1]
        opened = asyncio.Event()
        reading = self._http_person(tenant, person).read_events(session, over=asyncio.Event(), opened=opened.set)
        stream = asyncio.create_task(reading)
        await asyncio.wait_for(opened.wait(), STREAM_END_SECONDS)
        person.is_leaving = True
        await self._key_command("revoke", person.key_id)
        await self._check_revoked(person.name, person.key)
        person.is_removed = True
        try:
            await asyncio.wait_for(stream, STREAM_END_SECONDS)
        except TimeoutError:
            self.evidence.surprise(f"a stream of {person.name} goes on after the key was revoked")
        return f"{person.name} was removed"

    async def _key_command(self, *arguments: str) -> dict[str, str]:
        code, output = await self.services.run_command("keys", *arguments, "--json")
        if code:
            raise ServicesError(f"`turnkeeper keys {arguments[0]}` ended with {code}: {output}")
        key: dict[str, str] = json.loads(output.splitlines()[-1])
        return key

    async def _check_revoked(self, name: str, key: str) -> None:
        await pause(REVOKED_SECONDS)
        response = await self.http.get("/workflow", headers={"Authorization": f"Bearer {key}"}, timeout=30.0)
        if response.status_code != 401:
            self.evidence.surprise(f"the revoked key of {name} was answered {response.status_code}")

    def _check_logs(self) -> None:
        secrets = [tenant.word for tenant in self.tenants]
        secrets += [person.secret for tenant in self.tenants for person in tenant.people]
        for name, log in self.services.logs.items():
            if any(secret in log for secret in secrets):
                self.evidence.surprise(f"the log of {name} has a text or a key")
