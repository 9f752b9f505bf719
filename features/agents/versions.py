"""Versions of agents: data that never changes, so that a session keeps the agent it was started with (AGN-4)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from turnkeeper.features.agents.agent_data import AgentData
from turnkeeper.features.agents.tables import AGENTS
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import insert_missing, microseconds, moment_of

MAX_VERSIONS = 100
"""How many versions of an agent are listed."""


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
            if existing := _first(connection, select(AGENTS).where(this)):
                return existing
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
