"""The limits of what a request does to sessions: prompts a minute in one, and open ones of a tenant (API-4)."""

import asyncio
import math
from dataclasses import dataclass

from temporalio.client import Client

from turnkeeper.api.callers import Caller
from turnkeeper.api.changes import Change, ChangeObserver
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.history.visible_sessions import count_open_sessions
from turnkeeper.api.http.limits import TokenBuckets, limit_of
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.http_responses import Action
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings

PROMPTING: frozenset[Action] = frozenset({"prompt", "retry", "message_task"})
"""Each sends a prompt to a session."""

SESSIONS_RETRY_SECONDS = 60
"""When to try again while a tenant has too many open sessions; somebody must end one."""

COUNT_SECONDS = 10.0
"""How long a count of a tenant's open sessions is used."""


class SessionLimits(ChangeObserver):
    """Checks each request that changes something, over HTTP and MCP, before it does."""

    def __init__(self, settings: Settings, reader: SessionReader) -> None:
        self._settings = settings
        self._reader = reader
        self._prompts = TokenBuckets()
        self._open = OpenSessions(reader.client, reader.timeouts)

    async def check(self, change: Change) -> None:
        """Count a change. Raises 429 if it is one too many; then it may not be made."""
        caller, workflow_id, starts = change.caller, change.workflow_id, change.starts
        if change.action in PROMPTING and workflow_id:
            self._check_prompt(caller, workflow_id)
        if starts == "new" or (starts != "nothing" and workflow_id and not await self._is_there(caller, workflow_id)):
            await self._check_start(caller)

    def _check_prompt(self, caller: Caller, workflow_id: WorkflowId) -> None:
        limit = limit_of(self._settings, "prompt_rate_limit", caller)
        if limit == math.inf:
            return
        seconds = self._prompts.seconds_to_wait(workflow_id, rate=limit / 60, burst=max(1, limit))
        if seconds:
            retry_after = math.ceil(seconds)
            rate = f"{limit:,g} prompts a minute in one session"
            detail = f"The limit prompt_rate_limit is {rate}. Try again in {retry_after} s."
            raise problem("rate-limited", detail, limit="prompt_rate_limit", retry_after=retry_after)

    async def _check_start(self, caller: Caller) -> None:
        limit = limit_of(self._settings, "max_open_sessions", caller)
        if limit != math.inf and not await self._open.reserve(caller.tenant, limit=limit):
            again = f"End one, or try again in {SESSIONS_RETRY_SECONDS} s."
            detail = f"The limit max_open_sessions is {limit:,g} open sessions. {again}"
            raise problem("rate-limited", detail, limit="max_open_sessions", retry_after=SESSIONS_RETRY_SECONDS)

    async def _is_there(self, caller: Caller, workflow_id: WorkflowId) -> bool:
        """Return whether the session is open or has ended, so that nothing can start it again.

        Without Temporal it counts as there: starting the session fails then too. It is asked once for each session,
        since the first run's id is cached, and not at all without a limit.
        """
        if limit_of(self._settings, "max_open_sessions", caller) == math.inf:
            return True
        try:
            await self._reader.first_run_id(workflow_id)
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
