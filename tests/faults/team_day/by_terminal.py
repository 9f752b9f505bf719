"""A person who works in the terminal: `turnkeeper chat`, with the key in the environment."""

import asyncio
import json
from dataclasses import dataclass

from tests.faults.team_day.by_http import pause
from tests.faults.team_day.evidence import Evidence
from tests.faults.team_day.people import Person, Tenant
from tests.faults.team_day.services import Services

NO_ANSWER, UNREACHABLE = 1, 2
"""Exit codes while the worker or the gateway restarts."""

PAUSE_SECONDS = 5.0


@dataclass
class TerminalPerson:
    """Sends one prompt after the other to new sessions, each with a process of its own."""

    person: Person
    tenant: Tenant
    services: Services
    evidence: Evidence

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set() and not self.person.is_leaving:
            await self._chat()
            await pause(PAUSE_SECONDS, over=over)

    async def _chat(self) -> None:
        key = self.person.key
        code, output = await self.services.run_command(
            *("chat", "--json", "--url", self.services.gateway.url, f"what time is it? {self.tenant.word}"),
            TURNKEEPER_API_KEY=key,
        )
        self.evidence.check_text(self.person, output, "the terminal")
        self.evidence.count("terminal", "prompt", f"exit code {code}")
        last = output.strip().splitlines()[-1] if output.strip() else ""
        final = json.loads(last)["data"] if last.startswith('{"event":"final"') else {}
        if session := final.get("workflow_id"):
            self.evidence.doubt(self.person, "start", session)
            if code == 0:
                self.evidence.accept(self.person, "prompt", session)
                self.tenant.sessions.append(session)
            else:
                self.evidence.doubt(self.person, "prompt", session)
        elif code in (NO_ANSWER, UNREACHABLE):
            self.evidence.unresolved[self.person.name] += 1
        else:
            self.evidence.surprise(f"{self.person.name}: the terminal ended with {code}: {output[-300:]}")
