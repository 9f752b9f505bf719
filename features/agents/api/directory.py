"""The agents that sessions can be: found by label, and turned into a session's configuration (AGN-4)."""

import asyncio
from datetime import datetime

from turnkeeper.api.new_sessions import PLAIN, AgentSource
from turnkeeper.api.problems import invalid, problem
from turnkeeper.api.timeouts import Timeouts, read_store, seconds_from_now
from turnkeeper.features.agents.agent_data import AgentData, name_and_version
from turnkeeper.features.agents.versions import AgentVersion, AgentVersions
from turnkeeper.models.session.agents import AgentChange, AgentConfiguration
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.worker_process import WorkerReport

MAX_AGENTS_BYTES = 300_000
"""Of an agent with all that it may hand over to, as JSON: a session carries them from run to run."""

REGISTERING_SECONDS = 10.0
"""How long the first session waits until the worker, which is starting, has registered its file's agents."""

PAUSE_SECONDS = 0.1


class AgentDirectory(AgentSource):
    """Every agent that was ever registered. Methods raise `ProblemError` and `StoreUnavailableError`."""

    def __init__(self, settings: Settings, versions: AgentVersions, timeouts: Timeouts) -> None:
        self._settings = settings
        self._versions = versions
        self._timeouts = timeouts

    @property
    def default(self) -> str | None:
        """The agent of sessions that name none; `None`: they have what the settings say."""
        return self._settings.agent

    async def tool_problems(self) -> dict[str, str]:
        """Return what is wrong with tool servers, as the worker of this machine reports it."""
        report = await asyncio.to_thread(WorkerReport.read, self._settings.state_dir)
        return report.tool_problems if report else {}

    async def newest(self) -> list[AgentVersion]:
        """Return the newest version of every agent, by name."""
        return await read_store(self._versions.newest(), until=seconds_from_now(self._timeouts.request))

    async def all_of(self, name: str) -> list[AgentVersion]:
        """Return all versions of an agent, the newest first. Raises 404."""
        versions = await read_store(self._versions.all_of(name), until=seconds_from_now(self._timeouts.request))
        if not versions:
            raise problem("unknown-agent", name=name)
        return versions

    async def find(self, label: str) -> AgentVersion | None:
        """Return the version of a label, or the newest of a name."""
        name, number = name_and_version(label)
        return await read_store(self._versions.find(name, number), until=seconds_from_now(self._timeouts.request))

    async def add(self, name: str, data: AgentData, *, now: datetime) -> AgentVersion:
        """Make a version and return it; data that a version has already is that version.

        Raises 422 for data that no session could have, and `RejectedError`, which names the limit.
        """
        if name == PLAIN:
            raise invalid("name", f"{PLAIN!r} is what the settings say")
        settings = self._settings
        data.configuration(name, SessionInput(limits=settings.limits, history=settings.history))
        data = AgentData.model_validate(data.model_dump(exclude_unset=True))
        return await read_store(self._versions.add(name, data, now=now), until=seconds_from_now(self._timeouts.request))

    async def change_to(self, label: str, base: SessionInput) -> AgentChange:
        """Return an agent's configuration, and those of all that it may hand over to, in their newest versions.

        Raises 422 if there is none, or one of them is missing.
        """
        version = await self._resolve(label)
        others, missing = dict[str, AgentConfiguration](), list(version.data.handoffs)
        while missing:
            name = missing.pop()
            other = await self.find(name)
            if other is None:
                raise invalid("agent", f"{version.label} hands over to {name!r}, which is no agent")
            others[name] = other.data.configuration(other.label, base)
            missing += [one for one in other.data.handoffs if one not in others and one not in missing]
        change = AgentChange(agent=version.data.configuration(version.label, base), others=others)
        if len(change.model_dump_json().encode()) > MAX_AGENTS_BYTES:
            reason = f"{version.label} and the agents that it hands over to have over {MAX_AGENTS_BYTES:,} bytes"
            raise invalid("agent", reason)
        return change

    async def _resolve(self, label: str) -> AgentVersion:
        version = await self.find(label)
        if version is None and label == self._settings.agent and self._settings.agents:
            until = seconds_from_now(REGISTERING_SECONDS)
            while version is None and seconds_from_now(0) < until:
                await asyncio.sleep(PAUSE_SECONDS)
                version = await self.find(label)
        if version is None:
            names = ", ".join(one.name for one in await self.newest()) or "none yet"
            raise invalid("agent", f"there is no agent {label!r}; there are: {names}")
        return version
