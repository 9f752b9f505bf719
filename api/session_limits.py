"""The limits of what a request does to sessions: prompts a minute in one, and open ones of a tenant (API-4)."""

import asyncio
import math
from dataclasses import dataclass

from temporalio.client import Client

from turnkeeper.api.audit.actions import PROMPTING, Change
from turnkeeper.api.callers import Caller
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.http.rate_limits import TokenBuckets, limit_of
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.lists.listing import count_open_sessions
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings

SESSIONS_RETRY_SECONDS = 60
"""When to try again while a tenant has too many open sessions; somebody must end one."""

COUNT_SECONDS = 10.0
"""How long a count of a tenant's open sessions is used."""


class SessionLimits:
    """Checks each request that changes something, over HTTP and MCP, before it does."""

    def __init__(self, settings: Settings, reader: SessionReader) -> None:
        self._settings = settings
        self._reader = reader
        self._prompts = TokenBuckets()
        self._open = OpenSessions(reader.client, reader.timeouts)

    async def check(self, caller: Caller, changes: list[Change]) -> None:
        """Count the changes. Raises 429 if they are too many; then none of them may be made."""
        for change in changes:
            if change.action in PROMPTING and change.session_id:
                self._check_prompt(caller, change.session_id)
        for change in changes:
            if change.may_start_session:
                await self._check_start(caller, change)

    def _check_prompt(self, caller: Caller, session_id: str) -> None:
        limit = limit_of(self._settings, "prompt_rate_limit", caller)
        if limit == math.inf:
            return
        seconds = self._prompts.seconds_to_wait(caller.workflow_id(session_id), rate=limit / 60, burst=max(1, limit))
        if seconds:
            retry_after = math.ceil(seconds)
            rate = f"{limit:,g} prompts a minute in one session"
            detail = f"The limit prompt_rate_limit is {rate}. Try again in {retry_after} s."
            raise problem("rate-limited", detail, limit="prompt_rate_limit", retry_after=retry_after)

    async def _check_start(self, caller: Caller, change: Change) -> None:
        limit = limit_of(self._settings, "max_open_sessions", caller)
        if limit == math.inf or await self._starts_nothing(caller, change.session_id):
            return
        if not await self._open.reserve(caller.tenant, limit=limit):
            again = f"End one, or try again in {SESSIONS_RETRY_SECONDS} s."
            detail = f"The limit max_open_sessions is {limit:,g} open sessions. {again}"
            raise problem("rate-limited", detail, limit="max_open_sessions", retry_after=SESSIONS_RETRY_SECONDS)

    async def _starts_nothing(self, caller: Caller, session_id: str | None) -> bool:
        """Return whether the session is open or has ended, so that nothing can start it again.

        The same without Temporal: starting the session fails then too. It is asked once for each session, since the
        first run's id is cached.
        """
        if session_id is None:
            return False
        try:
            await self._reader.first_run_id(caller.workflow_id(session_id))
        except ProblemError as problem:
            return problem.problem.type.endswith(":temporal-unreachable")
        return True


@dataclass
class _Count:
    sessions: int
    at: float


class OpenSessions:
    """The numbers of open sessions by tenant: the last count, and what was started here since."""

    def __init__(self, client: Client, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._counts: dict[str, _Count] = {}
        self._calls = Coalescer[str, _Count]()

    async def reserve(self, tenant: str, *, limit: float) -> bool:
        """Return whether the tenant may have one more, which counts from now on.

        While Temporal can't count, it may: starting the session fails then too.
        """
        count = self._counts.get(tenant)
        if count is None or asyncio.get_running_loop().time() - count.at > COUNT_SECONDS:
            try:
                count = await self._calls.run(tenant, lambda: self._count(tenant))
            except ProblemError:
                return True
        if count.sessions >= limit:
            return False
        count.sessions += 1
        return True

    async def _count(self, tenant: str) -> _Count:
        """Replace the tenant's count; all who wait for it then add to the same one. Raises `ProblemError`."""
        began = asyncio.get_running_loop().time()
        count = self._counts[tenant] = _Count(await count_open_sessions(self._client, self._timeouts, tenant), began)
        return count
