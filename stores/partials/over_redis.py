"""Partial output by way of Redis: within milliseconds, and without asking Temporal (AGT-5).

Theory of operation. The newest snapshot of a session is the value of a key that expires, for those who come later, and
a message in a channel of the same name, for those who are there. One task of the worker sends what is new, of all its
sessions at once; of what could not be sent the newest is sent later. A gateway has one connection for each session that
somebody watches while it is processed.

Redis may be down, restarted empty or behind a dead network at any time. Nobody waits for it but the tasks here: they
begin anew until they are through. What it says of a failure may hold keys and texts, so only its kind is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier

ANSWER_SECONDS = 2.0
"""Bound of a connection's being made, and of an answer."""

RETRY_SECONDS = 0.5

QUIET_SECONDS = 15.0
"""A channel over which nothing came for so long may be dead: it is opened anew, which costs a millisecond."""

KEPT_SECONDS = 600
"""What a worker that died has left is kept for as long as a model call may last by default."""

FAILURES = (RedisError, OSError, TimeoutError)

_IS_LATER = """
local held = redis.call('HMGET', KEYS[1], 'request', 'attempt')
local request, attempt = tonumber(held[1] or 0), tonumber(held[2] or 0)
local is_later = request > tonumber(ARGV[1]) or (request == tonumber(ARGV[1]) and attempt > tonumber(ARGV[2]))
"""
"""Whether what is held is of a later answer than that of the caller, who may be a worker that was given up."""

_SHOW = f"""{_IS_LATER}
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

_log = logging.getLogger(__name__)


class RedisCarrier(PartialCarrier):
    """Carries snapshots through one Redis server."""

    min_pause = 0.05

    def __init__(self, url: str, *, namespace: str, task_queue: str) -> None:
        """Use the server at `url`; nothing is opened yet. Installations with other names may share it."""
        super().__init__()
        self._redis = Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # Here failures are waited out by the tasks, which then know better what to send or to read.
            retry=Retry(NoBackoff(), 0),
        )
        self._prefix = f"turnkeeper:{quote(namespace, safe='')}:{quote(task_queue, safe='')}:partial:"
        self._unsent: dict[str, PartialOutput | PartialTag] = {}
        """The newest snapshot of each session, or the mere tag of an attempt that has ended."""
        self._has_unsent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._is_failing = False

    async def check(self) -> None:
        """Show something and take it back, as a worker does. Raises one of `FAILURES`; `reason_of` puts it in words."""
        nothing = PartialOutput(message_id="", turn=0, step=0, request=0, attempt=0)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._send({"": nothing})
            await self._send({"": PartialTag(**dict(nothing))})

    async def __aexit__(self, *_: object) -> None:
        """Send and follow nothing more; what was shown last expires."""
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await super().__aexit__()
        await self._redis.aclose()
        # A pool that still counts connections imports a module when it is collected as garbage, and that may be in the
        # middle of a workflow, whose sandbox would load all of the package anew.
        self._redis.connection_pool.reset()  # type: ignore[no-untyped-call]

    # ---- the worker's side

    def show(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        """Have the snapshot sent, in the place of one that is not sent yet."""
        self._tell(workflow_id, snapshot)

    def end(self, workflow_id: str, tag: PartialTag) -> None:
        self._tell(workflow_id, tag)

    def _tell(self, workflow_id: str, news: PartialOutput | PartialTag) -> None:
        unsent = self._unsent.get(workflow_id)
        if unsent is not None and unsent.is_later_than(news):
            return
        self._unsent[workflow_id] = news
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
            except Exception as error:  # noqa: BLE001  # one task sends for all sessions: it has to outlive what is wrong
                # Not put back, or it would be in the way of all that comes: a session's next snapshot has it too.
                _log.warning("some of an answer is not shown while it is written (%s)", type(error).__name__)
            else:
                self._note_success()

    async def _send(self, batch: dict[str, PartialOutput | PartialTag]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for workflow_id, news in batch.items():
                key, order = self._prefix + workflow_id, (news.request, news.attempt)
                if isinstance(news, PartialOutput):
                    pipeline.eval(_SHOW, 1, key, *order, news.model_dump_json(), KEPT_SECONDS)
                else:
                    pipeline.eval(_END, 1, key, *order)
            await pipeline.execute()

    def _put_back(self, batch: dict[str, PartialOutput | PartialTag]) -> None:
        """Have snapshots sent later, unless there are newer ones. What has ended expires by itself."""
        snapshots = {workflow_id: news for workflow_id, news in batch.items() if isinstance(news, PartialOutput)}
        self._unsent = {**snapshots, **self._unsent}
        if self._unsent:
            self._has_unsent.set()

    # ---- the gateway's side

    async def forget(self, workflow_id: str) -> None:
        """Have what is held of the session deleted, if Redis can be reached now; else it expires."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._redis.delete(self._prefix + workflow_id)
        except FAILURES as error:
            _log.debug("partial output is left to expire: %s", reason_of(error))

    async def _keep_new(self, workflow_id: str, live: LiveSnapshot) -> None:
        while True:
            try:
                await self._listen(self._prefix + workflow_id, live)
            except (*FAILURES, ValueError) as error:  # `ValueError`: a snapshot of another release
                self._note_failure(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, key: str, live: LiveSnapshot) -> None:
        """Take what is shown, and what was before, until nothing has come for a while."""
        async with contextlib.aclosing(self._redis.pubsub()) as channel:
            await channel.subscribe(key)
            while message := await channel.get_message(timeout=QUIET_SECONDS):
                self._note_success()
                # Looked at once the channel is open, so that nothing falls between what was shown and what will be.
                is_open = message["type"] == "subscribe"
                snapshot = await self._redis.hget(key, "snapshot") if is_open else message["data"]
                if snapshot is not None:
                    live.update(PartialOutput.model_validate_json(snapshot))

    # ---- what is logged

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            _log.warning("answers are not shown while they are written: %s", reason_of(error))
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            _log.info("answers are shown again while they are written")
        self._is_failing = False


def reason_of(error: Exception) -> str:
    """Say what is wrong with Redis, without its own words: they can hold users, keys and texts.

    >>> reason_of(AuthenticationError("invalid username-password pair or user is disabled."))
    'Redis does not accept the user or the password (AuthenticationError)'
    """
    kind = type(error).__name__
    if isinstance(error, AuthenticationError | AuthorizationError):
        return f"Redis does not accept the user or the password ({kind})"
    if isinstance(error, ResponseError):
        return f"Redis refuses what is needed of it ({kind})"
    if isinstance(error, TimeoutError | RedisTimeout):
        return f"Redis does not answer within {ANSWER_SECONDS:g} s"
    if isinstance(error, ValueError):
        return "Redis holds something else than partial output"
    return f"Redis can't be reached ({kind})"
