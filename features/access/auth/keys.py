"""API keys: from what a request carries to its caller (API-4)."""

from datetime import UTC, datetime

from turnkeeper.api.callers import Caller, Identity
from turnkeeper.api.problems import problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.auth.api_keys import ApiKey, ApiKeys, has_secret, parse_key
from turnkeeper.features.access.auth.recent_lookups import RecentLookups


class KeyVerifier:
    """Verifies keys. A key that can't be looked up is a 503, not a 401: the caller should try again."""

    def __init__(self, keys: ApiKeys, timeouts: Timeouts) -> None:
        self._keys = RecentLookups[ApiKey](lambda key_id: keys.find(key_id), timeouts)

    async def verify(self, text: str) -> Identity:
        """Return whose key it is. Raises `ProblemError` 401 and `StoreUnavailableError`."""
        parts = parse_key(text)
        if parts is None:
            raise problem("unauthenticated")
        key_id, secret = parts
        key = await self._keys.find(key_id)
        is_own = has_secret(key, secret)
        if key is None:
            raise problem("unauthenticated")
        if not is_own:
            raise problem("unauthenticated", caller=_caller_of(key))
        return _identity_of(key)

    async def identity_of(self, key_id: str) -> Identity:
        """Return whose key it is, without its secret. Raises as `verify` does."""
        key = await self._keys.find(key_id)
        if key is None:
            raise problem("unauthenticated")
        return _identity_of(key)

    async def is_valid(self, key_id: str) -> bool:
        """Return whether the key can still be used. Raises `StoreUnavailableError`."""
        key = await self._keys.find(key_id)
        return key is not None and key.is_valid(now=datetime.now(UTC))


def _caller_of(key: ApiKey) -> Caller:
    return Caller(id=f"key:{key.id}", tenant=key.tenant, user=key.user, role=key.role)


def _identity_of(key: ApiKey) -> Identity:
    caller = _caller_of(key)
    if not key.is_valid(now=datetime.now(UTC)):
        raise problem("unauthenticated", caller=caller)
    expires_at = key.expires_at.timestamp() if key.expires_at else None
    return Identity(caller, key_id=key.id, expires_at=expires_at)
