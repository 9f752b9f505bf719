"""Versions of agents: data that never changes, so that a session keeps the agent it was started with (AGN-4)."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection, Row, Select, func, select

from turnkeeper.features.agents.tables import AGENTS
from turnkeeper.models.ids import AGENT_NAME_PATTERN
from turnkeeper.models.context.window import HistoryChange
from turnkeeper.models.limits import LimitsChange
from turnkeeper.models.session.defaults import SystemPrompt
from turnkeeper.models.session.messages import ModelName
from turnkeeper.models.session.tools.tool_policy import ToolNames, ToolPolicy
from turnkeeper.models.wire import Strict
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds, moment_of
from turnkeeper.stores.database.rows import insert_missing

AgentName = Annotated[str, Field(pattern=rf"^{AGENT_NAME_PATTERN}$")]


MAX_VERSIONS = 100
"""How many versions of an agent are listed."""


class AgentData(Strict):
    """What an agent is, without the code of its tools."""

    instructions: SystemPrompt
    model: ModelName | None = None
    """`provider:name`; null: the installation's."""
    tools: ToolNames = []
    """Exactly the tools that it has, with the server of each that is not built in: `weather__forecast`."""
    tool_policy: ToolPolicy = {}
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
    handoffs: list[AgentName] = Field([], max_length=50)
    """Agents that it may start as tasks."""

    @property
    def digest(self) -> str:
        """Is the same for the same data."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def text(self) -> str:
        return self.model_dump_json(exclude_unset=True)


@dataclass(frozen=True)
class AgentVersion:
    """One version of an agent. Versions count from 1."""

    name: str
    version: int
    data: AgentData
    created_at: datetime

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


def name_and_version(label: str) -> tuple[str, int | None]:
    """Return what a caller means by `weather` or `weather@7`. Raises `ValueError`.

    >>> name_and_version("weather@7"), name_and_version("weather")
    (('weather', 7), ('weather', None))
    """
    parts = re.fullmatch(rf"({AGENT_NAME_PATTERN})(?:@([1-9][0-9]{{0,8}}))?", label)
    if parts is None:
        raise ValueError("write the name of an agent, or NAME@VERSION")
    return parts[1], int(parts[2]) if parts[2] else None


class AgentVersions:
    """The store of agents. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, name: str, data: AgentData, *, now: datetime) -> AgentVersion:
        """Store a version and return it; data that is there already keeps its number, and is the last one again.

        Two workers that add the same at once get the same version.
        """

        def add(connection: Connection) -> AgentVersion | None:
            this = (AGENTS.c.name == name) & (AGENTS.c.digest == data.digest)
            connection.execute(AGENTS.update().where(this).values(named_at=microseconds(now)))
            if known := _first(connection, select(AGENTS).where(this)):
                return known
            newest = _first(connection, _rows(name))
            number = newest.version + 1 if newest else 1
            row: dict[str, object] = {
                "name": name,
                "version": number,
                "digest": data.digest,
                "data": data.text,
                "created_at": microseconds(now),
                "named_at": microseconds(now),
            }
            insert_missing(connection, AGENTS, [row])
            return _first(connection, select(AGENTS).where(this))

        while (version := await self._database.write(add)) is None:
            pass  # another process took this number for other data
        return version

    async def find(self, name: str, version: int | None = None) -> AgentVersion | None:
        """Return a version, or without a number the one that was added last; `None` if there is none."""
        rows = select(AGENTS).where(AGENTS.c.name == name)
        rows = rows.order_by(*_LAST) if version is None else rows.where(AGENTS.c.version == version)
        return await self._database.read(lambda connection: _first(connection, rows))

    async def newest(self) -> list[AgentVersion]:
        """Return of every agent the version that was added last, by name."""
        place = func.row_number().over(partition_by=AGENTS.c.name, order_by=_LAST).label("place")
        rows = select(AGENTS, place).subquery()
        return await self._all(select(rows).where(rows.c.place == 1).order_by(rows.c.name))

    async def all_of(self, name: str) -> list[AgentVersion]:
        """Return the newest `MAX_VERSIONS` versions of an agent, the newest first; none if there is no such agent."""
        return await self._all(_rows(name).limit(MAX_VERSIONS))

    async def _all(self, rows: "Select[Any]") -> list[AgentVersion]:
        return await self._database.read(lambda connection: [_version_of(row) for row in connection.execute(rows)])


_LAST = (AGENTS.c.named_at.desc(), AGENTS.c.version.desc())


def _rows(name: str) -> "Select[Any]":
    return select(AGENTS).where(AGENTS.c.name == name).order_by(AGENTS.c.version.desc())


def _first(connection: Connection, rows: "Select[Any]") -> AgentVersion | None:
    row = connection.execute(rows.limit(1)).one_or_none()
    return None if row is None else _version_of(row)


def _version_of(row: Row[Any]) -> AgentVersion:
    return AgentVersion(row.name, row.version, AgentData.model_validate_json(row.data), moment_of(row.created_at))
