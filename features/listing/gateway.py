"""What lists add to the gateway: the list of sessions, and the repair of their index."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query

from turnkeeper.api.dependencies import CallerDep, ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.roles import access
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.listing.lists import IndexRepair, SessionLists
from turnkeeper.models.http_responses import SessionList
from turnkeeper.models.session.messages import USER_PATTERN
from turnkeeper.models.transcript.model_call import IndexStatus
from turnkeeper.models.wire import NO_NUL_PATTERN, StorableText
from turnkeeper.stores.session_index import IndexQuery

router = APIRouter(tags=["sessions"])


@router.get("/workflow", operation_id="list_sessions", responses=errors(*ANY, "archive-unavailable"))
@access("reader")
async def get_sessions_list(
    services: ServicesDep,
    caller: CallerDep,
    status: Annotated[IndexStatus | None, Query(description="Only sessions with this status.")] = None,
    user: Annotated[str | None, Query(pattern=USER_PATTERN, description="Only this user's sessions.")] = None,
    q: Annotated[
        StorableText | None,
        Query(
            min_length=1,
            max_length=200,
            description="Text in title, preview or id, in any case.",
            json_schema_extra={"pattern": NO_NUL_PATTERN},
        ),
    ] = None,
    cursor: Annotated[str | None, Query(max_length=4_000, description="`next_cursor` of the previous page.")] = None,
) -> SessionList:
    """List sessions, those with the latest activity first."""
    query = IndexQuery(tenant=caller.tenant, user=user, text=q)
    return await services.get(SessionLists).sessions(query, status=status, cursor=cursor)


class _Listing(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        yield SessionLists(services.stores, services.timeouts)

    @asynccontextmanager
    async def running(self, app: FastAPI, services: Services) -> AsyncIterator[None]:
        repair = IndexRepair(services.client, services.stores.index, services.timeouts)
        repair.start()
        try:
            yield
        finally:
            await repair.close()


GATEWAY = _Listing()
