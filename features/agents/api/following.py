"""While one develops an agent: open sessions become its newest version at their next turn (AGN-1)."""

import asyncio
import logging

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.services import Services
from turnkeeper.features.agents.agent_data import name_and_version
from turnkeeper.features.agents.api.directory import AgentDirectory
from turnkeeper.models.ids import DEFAULT_TENANT
from turnkeeper.models.session.messages import Configure, StateRequest
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexQuery

LOOK_SECONDS = 0.5
MAX_SESSIONS = 50
"""How many open sessions follow, those with the latest activity first."""

_log = logging.getLogger(__name__)


async def follow_newest(services: Services, directory: AgentDirectory) -> None:
    """Move open sessions whenever an agent has a new version. Never ends."""
    moved_to: dict[str, str] = {}
    while True:
        try:
            newest = {one.name: one.label for one in await directory.newest()}
            if moved_to and newest != moved_to:
                await _move_all(services, newest)
            moved_to = newest  # only now: after a failure, all of them are looked at again
        except (ProblemError, StoreUnavailableError) as error:
            _log.warning("sessions do not follow their agents now: %s", error)
        await asyncio.sleep(LOOK_SECONDS)


async def _move_all(services: Services, newest: dict[str, str]) -> None:
    await services.stores.index_writer.flush()
    query = IndexQuery(tenant=DEFAULT_TENANT, statuses=["open", "awaiting_approval"])
    for row in await services.stores.index.page(query, limit=MAX_SESSIONS):
        state = await services.reader.state(row.session_id, StateRequest(limit=0))
        label = state.session.agent
        to = newest.get(name_and_version(label)[0]) if label else None
        if to is not None and to != label:
            change = Configure(agent=await services.new_sessions.change_to(to, row.session_id))
            await services.sessions.configure(row.session_id, change)
