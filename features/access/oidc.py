"""Tokens of an OpenID Connect issuer: from a JWT to its caller (API-4).

A token is believed if one of the issuer's public keys verifies its signature. The keys come from the issuer, over
HTTPS, and are used for 10 minutes. The next token waits for newer ones, so a key that the issuer has withdrawn is not
accepted any longer; only while the issuer can't be reached, the earlier keys are used. They are also read when a token
names a key that is not among them. Anybody can cause that, so it happens at most every 30 seconds. PyJWT's own client
drops the keys when they expire, also while the issuer can't be reached, and needs keys with an id.

Only asymmetric algorithms are accepted. With `none` there would be no signature, and with HS256 the public key would
be the password.
"""

import asyncio
import json
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

import jwt

from turnkeeper.api.callers import ROLES, Caller, Identity, Role
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.http_responses import parse_role
from turnkeeper.models.ids import DEFAULT_TENANT, is_tenant
from turnkeeper.models.settings.origins import parse_origin
from turnkeeper.models.settings.settings import OidcSettings, is_loopback
from turnkeeper.stores.database.tables import MAX_ID_CHARS

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
KEY_TYPES = frozenset({"RSA", "EC", "OKP"})

FETCH_SECONDS = 2.0
"""For reading the issuer's configuration and keys."""
MAX_BYTES = 1_000_000
"""Of an answer of the issuer."""

MAX_USER_CHARS = 64
_NOT_IN_USER_NAMES = re.compile(r"[^\w .@+~'’-]")  # noqa: RUF001  # as USER_PATTERN has it

_SUBJECT = re.compile(r"[ -~]+")
"""OpenID Connect: ASCII. A caller's id is stored, and a database can't hold every text."""

_log = logging.getLogger(__name__)

Jwk = dict[str, Any]


class TokenVerifier:
    """Verifies tokens of one issuer."""

    def __init__(self, settings: OidcSettings, timeouts: Timeouts) -> None:
        self._settings = settings
        self._leeway = timeouts.issuer_leeway
        self._keys = IssuerKeys(settings.issuer or "", timeouts)

    async def verify(self, token: str) -> Identity:
        """Return whose token it is.

        Raises `ProblemError`: 401, or 503 while the keys of the issuer can't be read.
        """
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError
            key = await self._keys.find(key_id)
            return self._identity_of(self._claims_of(token, key, algorithm))
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            # The error's own text may quote the token.
            _log.info("a token was rejected: %s", type(error).__name__)
            raise problem("unauthenticated") from None

    def _claims_of(self, token: str, key: Jwk, algorithm: str) -> dict[str, Any]:
        if key.get("alg", algorithm) != algorithm:
            raise jwt.InvalidAlgorithmError
        claims: dict[str, Any] = jwt.decode(
            token,
            jwt.PyJWK(key, algorithm=algorithm),
            algorithms=[algorithm],
            audience=self._settings.audience,
            issuer=self._settings.issuer,
            leeway=self._leeway,
            options={"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
        )
        return claims

    def _identity_of(self, claims: Mapping[str, Any]) -> Identity:
        tenant = claims.get(self._settings.tenant_claim)
        user = claims.get(self._settings.user_claim)
        if tenant is None:
            tenant = DEFAULT_TENANT
        elif not isinstance(tenant, str) or not tenant or not is_tenant(tenant):
            raise _TenantClaimError
        subject = f"oidc:{claims['sub']}"
        if len(subject) > MAX_ID_CHARS or not _SUBJECT.fullmatch(claims["sub"]):
            raise _SubjectError
        name = _NOT_IN_USER_NAMES.sub("_", user)[:MAX_USER_CHARS] if isinstance(user, str) and user else None
        role = _role_in(claims.get(self._settings.role_claim))
        caller = Caller(id=subject, tenant=tenant, user=name, role=role)
        return Identity(caller, expires_at=float(claims["exp"]) + self._leeway)


class IssuerKeys:
    """The public keys of the issuer, by their ids."""

    def __init__(self, issuer: str, timeouts: Timeouts, *, read: "Callable[[str], list[Jwk]] | None" = None) -> None:
        self._issuer = issuer
        self._timeouts = timeouts
        self._read = read or read_keys
        self._keys: list[Jwk] | None = None
        self._renew_at = 0.0
        self._may_ask_at = 0.0
        self._has_failed = False
        self._requests = Coalescer[str, None]()

    async def find(self, key_id: object) -> Jwk:
        """Return the key; without an id, the only one.

        Raises `jwt.InvalidKeyError` if there is no such key, and `ProblemError` 503 if nobody can say.
        """
        if self._cached(key_id) is None:
            await self._renew()
        elif time.monotonic() >= self._renew_at:
            with suppress(ProblemError):  # the earlier keys are used, and the log has it
                await self._renew()
        key = self._cached(key_id)
        if key is None:
            raise jwt.InvalidKeyError
        return key

    def _cached(self, key_id: object) -> Jwk | None:
        keys = self._keys or []
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.get("kid") == key_id), None)

    async def _renew(self) -> None:
        """Read the keys again, unless that was just done. Raises `ProblemError` 503."""
        if time.monotonic() >= self._may_ask_at:
            await self._requests.run("keys", self._ask)
        elif self._has_failed:
            raise problem("issuer-unavailable")

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keys = await asyncio.to_thread(self._read, self._issuer)
        except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
            # A timeout is an `OSError` too.
            self._has_failed, self._may_ask_at = True, time.monotonic() + self._timeouts.issuer_failure
            _log.warning("the issuer's keys can't be read: %s", type(error).__name__)
            raise problem("issuer-unavailable") from None
        now = time.monotonic()
        self._has_failed = False
        self._may_ask_at, self._renew_at = now + self._timeouts.issuer_unknown_key, now + self._timeouts.issuer_renewal


def read_keys(issuer: str) -> list[Jwk]:
    """Return the issuer's public keys for signatures.

    Raises `OSError`, `HTTPException`, `ValueError`, `TypeError` or `LookupError`.
    """
    configuration = _read_json(f"{issuer.removesuffix('/')}/.well-known/openid-configuration")
    if configuration["issuer"] != issuer:
        raise ValueError("the configuration is another issuer's")
    keys = _read_json(configuration["jwks_uri"])["keys"]
    return [key for key in keys if key["kty"] in KEY_TYPES and key.get("use", "sig") == "sig"]


def _read_json(url: str) -> dict[str, Any]:
    origin = parse_origin(url)
    if origin is None or not (origin.scheme == "https" or is_loopback(origin.host)):
        raise ValueError("not an https address")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if is_loopback(origin.host):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(url, timeout=FETCH_SECONDS) as response:
        body = response.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise ValueError("the answer is too long")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise TypeError("the answer is no object")
    return document


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would decide where keys come from; without this it is an `HTTPError`, which is an `OSError`."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class _TenantClaimError(ValueError):
    """The tenant's claim is there and is not a tenant's name."""


class _SubjectError(ValueError):
    """The subject is too long."""


class _RoleClaimError(ValueError):
    """The role's claim names no role."""


def _role_in(claim: object) -> Role:
    """Return the highest role in a claim; without a claim, the lowest."""
    if claim is None:
        return "reader"
    roles = [role for one in (claim if isinstance(claim, list) else [claim]) if (role := parse_role(one))]
    if not roles:
        raise _RoleClaimError
    return max(roles, key=ROLES.index)
