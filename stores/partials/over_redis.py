"""Partial output through Redis: within milliseconds, and without requests to Temporal (AGT-5).

The newest snapshot of a session is stored in a key that expires and published in a channel of the same name, for late
and for current followers. One task of the worker sends the new snapshots of all its sessions in one batch; after a
failure it sends the newest ones later. A gateway has one connection per session that is watched while it is processed.

Redis may be down, restarted empty or unreachable at any time. Only the tasks here wait for it: they retry with newer
data. Its error messages may contain keys and texts, so only the kind of an error is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.partial_output import CallProgress, LiveNews, PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier
from turnkeeper.stores.waiting import cancel_until_done

ANSWER_SECONDS = 2.0
"""Timeout of connecting and of a response."""

RETRY_SECONDS = 0.5

QUIET_SECONDS = 15.0
"""A channel that is silent for longer may be dead, so it is reopened, which takes a millisecond."""

KEPT_SECONDS = 600
"""Expiry of a dead worker's snapshots: the default time limit of a model call."""

FAILURES = (RedisError, OSError, TimeoutError)

_IS_LATER = """
local stored = redis.call('HMGET', KEYS[1], 'request', 'attempt')
local request, attempt = tonumber(stored[1] or 0), tonumber(stored[2] or 0)
local is_later = request > tonumber(ARGV[1]) or (request == tonumber(ARGV[1]) and attempt > tonumber(ARGV[2]))
"""
"""Whether the stored snapshot belongs to a later answer than the caller's; the caller may be outdated."""

_PUBLISH = f"""{_IS_LATER}
if is_later then return 0 end
redis.call('HSET', KEYS[1], 'request', ARGV[1], 'attempt', ARGV[2], 'snapshot', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[1], ARGV[3])
return 1
"""

_END = f"""{_IS_LATER}
if is_later then return 0 end
return redis.call('DEL', KEYS[1])
"""

_NEWS = TypeAdapter[LiveNews](LiveNews)

_log = logging.getLogger(__name__)


class RedisCarrier(PartialCarrier):
    """Carries snapshots through one Redis server."""

    min_pause = 0.05

    def __init__(self, url: str, *, namespace: str, task_queue: str) -> None:
        """Use the server at `url`, without connecting yet. Installations with other names may share it."""
        super().__init__()
        self._redis = Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # Our tasks retry with newer data.
            retry=Retry(NoBackoff(), 0),
        )
        self._prefix = f"turnkeeper:{quote(namespace, safe='')}:{quote(task_queue, safe='')}:partial:"
        self._unsent: dict[tuple[str, str], LiveNews | PartialTag] = {}
        """By session: the newest snapshot, or only the tag of an attempt that has ended; by call: its progress."""
        self._has_unsent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._is_failing = False

    async def check(self) -> None:
        """Publish and remove a snapshot, as a worker does. Raises one of `FAILURES`; `reason_of` describes it."""
        nothing = PartialOutput(message_id="", turn=0, step=0, request=0, attempt=0)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._send({("", ""): nothing})
            await self._send({("", ""): PartialTag(**dict(nothing))})

    async def __aexit__(self, *_: object) -> None:
        """Stop sending and following; the last snapshots expire."""
        if self._sending:
            await cancel_until_done([self._sending])
        await super().__aexit__()
        await self._redis.aclose()
        # A pool with open connections imports a module when it is garbage-collected. That may happen inside a workflow,
        # whose sandbox would then load the whole package again.
        self._redis.connection_pool.reset()  # type: ignore[no-untyped-call]

    # ---- the worker's side

    def publish(self, workflow_id: WorkflowId, news: LiveNews, *, behind: Sequence[object] = ()) -> None:
        """Send the snapshot soon, in place of an unsent one."""
        self._enqueue(workflow_id, news)

    def end(self, workflow_id: WorkflowId, tag: PartialTag) -> None:
        self._enqueue(workflow_id, tag)

    def _enqueue(self, workflow_id: WorkflowId, item: LiveNews | PartialTag) -> None:
        key = (workflow_id, "" if isinstance(item, PartialTag) else item.call_id)
        unsent = self._unsent.get(key)
        if isinstance(item, PartialTag) and isinstance(unsent, PartialTag) and unsent.is_later_than(item):
            return
        self._unsent[key] = item
        self._has_unsent.set()
        self._sending = self._sending or asyncio.create_task(self._keep_sending())

    async def _keep_sending(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            batch, self._unsent = self._unsent, {}
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._send(batch)
            except FAILURES as error:
                self._note_failure(error)
                self._put_back(batch)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  # this task sends for all sessions, so it must survive
                # Not sent again, since it may fail again; the session's next snapshot contains it too.
                _log.warning("some partial output could not be sent (%s)", type(error).__name__)
            else:
                self._note_success()

    async def _send(self, batch: Mapping[tuple[str, str], LiveNews | PartialTag]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for (workflow_id, _), item in batch.items():
                key = self._prefix + workflow_id
                if isinstance(item, CallProgress):
                    pipeline.publish(key, item.model_dump_json())
                elif isinstance(item, PartialOutput):
                    pipeline.eval(_PUBLISH, 1, key, item.request, item.attempt, item.model_dump_json(), KEPT_SECONDS)
                else:
                    pipeline.eval(_END, 1, key, item.request, item.attempt)
            await pipeline.execute()

    def _put_back(self, batch: Mapping[tuple[str, str], LiveNews | PartialTag]) -> None:
        """Send snapshots later, unless there are newer ones. Snapshots of ended attempts expire."""
        snapshots = {key: item for key, item in batch.items() if isinstance(item, PartialOutput)}
        self._unsent = {**snapshots, **self._unsent}
        if self._unsent:
            self._has_unsent.set()

    # ---- the gateway's side

    async def forget(self, workflow_id: WorkflowId) -> None:
        """Delete the session's snapshot if Redis can be reached; otherwise it expires."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._redis.delete(self._prefix + workflow_id)
        except FAILURES as error:
            _log.debug("partial output is left to expire: %s", reason_of(error))

    async def _keep_updated(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        while True:
            try:
                await self._listen(self._prefix + workflow_id, live)
            except (*FAILURES, ValueError) as error:  # `ValueError`: a snapshot of another version
                self._note_failure(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, key: str, live: LiveSnapshot) -> None:
        """Update `live` from the channel, and from the stored snapshot, until the channel is silent for a while."""
        async with contextlib.aclosing(self._redis.pubsub()) as channel:
            await channel.subscribe(key)
            while message := await channel.get_message(timeout=QUIET_SECONDS):
                self._note_success()
                # The stored snapshot is read once the channel is open, so that none between them is missed.
                is_open = message["type"] == "subscribe"
                snapshot = await self._redis.hget(key, "snapshot") if is_open else message["data"]
                if snapshot is not None:
                    live.update(_NEWS.validate_json(snapshot))

    # ---- logging

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            _log.warning("partial output is not shown: %s", reason_of(error))
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            _log.info("partial output is shown again")
        self._is_failing = False


def reason_of(error: Exception) -> str:
    """Describe a failure of Redis without its message, which may contain users, keys and texts.

    >>> reason_of(AuthenticationError("invalid username-password pair or user is disabled."))
    'Redis does not accept the user or the password (AuthenticationError)'
    """
    kind = type(error).__name__
    if isinstance(error, AuthenticationError | AuthorizationError):
        return f"Redis does not accept the user or the password ({kind})"
    if isinstance(error, ResponseError):
        return f"Redis rejects the commands that we need ({kind})"
    if isinstance(error, TimeoutError | RedisTimeout):
        return f"Redis does not answer within {ANSWER_SECONDS:g} s"
    if isinstance(error, ValueError):
        return "Redis has other data in place of partial output"
    return f"Redis can't be reached ({kind})"
