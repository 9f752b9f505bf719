"""API keys: from what a request carries to its caller (API-4)."""

import time
from datetime import UTC, datetime

from turnkeeper.api import problems
from turnkeeper.api.auth.identity import Identity
from turnkeeper.api.callers import Caller
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.stores.api_keys import ApiKey, ApiKeys, has_secret, parse_key
from turnkeeper.stores.bounded_dict import BoundedDict

CACHE_SECONDS = 1.0
"""How long a key is used without looking it up again. So a revoked key is refused within this time."""

MAX_CACHED = 10_000
"""Keys in the cache, unknown ones included: a stranger may send any number of those."""


class KeyVerifier:
    """Verifies keys. A key that can't be looked up is a 503, not a 401: the caller should try again."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._cache = BoundedDict[str, tuple[float, ApiKey | None]](max_entries=MAX_CACHED)
        self._lookups = Coalescer[str, ApiKey | None]()

    async def verify(self, text: str) -> Identity:
        """Return whose key it is. Raises `ProblemError` 401 and `StoreUnavailableError`."""
        parts = parse_key(text)
        if parts is None:
            raise problems.bad_credential()
        key_id, secret = parts
        key = await self._find(key_id)
        is_own = has_secret(key, secret)
        if key is None:
            raise problems.bad_credential()
        caller = Caller(id=f"key:{key.id}", tenant=key.tenant, user=key.user, role=key.role)
        if not is_own or not key.is_valid(now=datetime.now(UTC)):
            raise problems.bad_credential(caller)
        expires_at = key.expires_at.timestamp() if key.expires_at else None
        return Identity(caller, key_id=key.id, expires_at=expires_at)

    async def is_valid(self, key_id: str) -> bool:
        """Return whether the key can still be used. Raises `StoreUnavailableError`."""
        key = await self._find(key_id)
        return key is not None and key.is_valid(now=datetime.now(UTC))

    async def _find(self, key_id: str) -> ApiKey | None:
        looked_up_at, key = self._cache.get(key_id, (float("-inf"), None))
        if time.monotonic() - looked_up_at < CACHE_SECONDS:
            return key
        return await self._lookups.run(key_id, lambda: self._look_up(key_id))

    async def _look_up(self, key_id: str) -> ApiKey | None:
        # The time before the lookup: the key may be revoked during it.
        started_at = time.monotonic()
        key = await self._keys.find(key_id)
        self._cache[key_id] = (started_at, key)
        return key
