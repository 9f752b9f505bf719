"""Tokens of an issuer: which are believed, and what they make of their caller (API-4)."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi import FastAPI

from tests.features.access.auth.issuer import AUDIENCE, Issuer, public_jwk, running_issuer
from tests.features.access.auth.matrix import COLUMNS, client_of, key_of, outcome_of
from turnkeeper.api.app import create_app
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def settings(issuer: Issuer, tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, auth={"oidc": {"issuer": issuer.url, "audience": AUDIENCE}})


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def renewing_app(settings: Settings) -> FastAPI:
    """A gateway that reads the issuer's keys for every token."""
    return create_app(settings, timeouts=Timeouts(issuer_renewal=0, issuer_unknown_key=0))


async def caller_of(app: FastAPI, token: str) -> dict[str, Any] | None:
    async with client_of(app, token) as http:
        return (await http.get("/me")).json()["caller"]


async def status_of(app: FastAPI, token: str) -> int:
    """Return the status of a request that only needs a valid token; 404 if it has one."""
    async with client_of(app, token) as http:
        return (await http.get("/nowhere")).status_code


async def test_api_4_a_token_names_its_caller_tenant_and_role(app: FastAPI, issuer: Issuer) -> None:
    reader = {"tenant": "", "user": "u-1", "role": "reader"}
    assert await caller_of(app, issuer.token()) == reader
    token = issuer.token(sub="auth0|7", tenant="acme", role="approver")
    assert await caller_of(app, token) == {"tenant": "acme", "user": "auth0_7", "role": "approver"}
    assert (await caller_of(app, issuer.token(role=["viewer", "writer", "reader"])))["role"] == "writer"
    assert await caller_of(app, issuer.token(aud=["other", AUDIENCE])) == reader
    async with client_of(app, issuer.token(role="writer")) as http:
        assert (await http.delete("/workflow/x")).status_code == 403
        assert outcome_of(await http.delete("/workflow/x")) == "forbidden"


async def test_api_4_the_claims_are_settings(issuer: Issuer, tmp_path: Path) -> None:
    claims = {"tenant_claim": "org", "user_claim": "email", "role_claim": "https://acme.example/role"}
    auth = {"oidc": {"issuer": issuer.url, "audience": AUDIENCE, **claims}}
    app = create_app(Settings(state_dir=tmp_path, auth=auth))
    token = issuer.token(org="acme", email="ann@acme.example", **{"https://acme.example/role": "admin"}, role="reader")
    assert await caller_of(app, token) == {"tenant": "acme", "user": "ann@acme.example", "role": "admin"}


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "http://127.0.0.1:1"},
    "the issuer with a slash": {"iss": "SLASH"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "another"},
    "the audience and more": {"aud": f"{AUDIENCE}2"},
    "no audience": {"aud": None},
    "expired": {"exp": int(time.time()) - 60},
    "without an end": {"exp": None},
    "an end that is no number": {"exp": "soon"},
    "not valid yet": {"nbf": int(time.time()) + 6_000},
    "issued in the future": {"iat": int(time.time()) + 6_000},
    "no subject": {"sub": None},
    "a subject that is no text": {"sub": 7},
    "a long subject": {"sub": "x" * 300},
    "an empty subject": {"sub": ""},
    "a subject that is no Unicode": {"sub": "\ud800"},
    "a subject with a NUL": {"sub": "u\0"},
    "a subject that is not ASCII": {"sub": "Miló"},
    "an unknown role": {"role": "root"},
    "no known role": {"role": ["root", 7, {}]},
    "a role that is no text": {"role": {"writer": True}},
    "a tenant that cannot be one": {"tenant": "Acme:x"},
    "a tenant that is no text": {"tenant": ["acme"]},
    "an empty list of tenants": {"tenant": []},
    "a tenant that is false": {"tenant": False},
    "an empty tenant": {"tenant": ""},
}


@pytest.mark.parametrize("claims", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
async def test_api_4_a_token_with_a_wrong_claim_is_rejected(
    app: FastAPI, issuer: Issuer, claims: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="turnkeeper")
    claims = {**claims, "iss": f"{issuer.url}/"} if claims.get("iss") == "SLASH" else claims
    token = issuer.token(**claims)
    assert await status_of(app, token) == 401
    assert "a token was rejected: " in caplog.text
    assert token not in caplog.text
    assert not any(part in caplog.text for part in token.split("."))
    assert await status_of(app, issuer.token()) == 404


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    return f"{encoded(header)}.{encoded(claims)}"


def signed_with(secret: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Return a token that a password signs; the library refuses public keys as passwords."""
    text = unsigned(header, claims)
    signature = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_api_4_only_a_signature_of_the_issuer_counts(app: FastAPI, issuer: Issuer) -> None:
    claims, good = issuer.claims(), issuer.token()
    key = issuer.keys["first"]
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    jwk = json.dumps(issuer.published[0]).encode()
    stranger = ec.generate_private_key(ec.SECP256R1())
    head, body, signature = good.split(".")
    tokens = {
        "none": unsigned({"alg": "none", "kid": "first"}, claims) + ".",
        "None": unsigned({"alg": "None", "kid": "first"}, claims) + ".",
        "no algorithm": unsigned({"kid": "first"}, claims) + "." + signature,
        "HS256 with the public key": signed_with(pem, {"alg": "HS256", "kid": "first"}, claims),
        "HS256 with the published key": signed_with(jwk, {"alg": "HS256", "kid": "first"}, claims),
        "another algorithm": unsigned({"alg": "RS256", "kid": "first"}, claims) + "." + signature,
        "a stranger's key": jwt.encode(claims, stranger, algorithm="ES256", headers={"kid": "first"}),
        "a key in the token": jwt.encode(
            claims, stranger, algorithm="ES256", headers={"kid": "first", "jwk": public_jwk(stranger, "first")}
        ),
        "other claims": f"{head}.{encoded({**claims, 'role': 'admin'})}.{signature}",
        "no signature": f"{head}.{body}.",
        "cut off": good[:-4],
        "no parts": "eyJhbGciOiJub25lIn0",
        "an id that is no text": unsigned({"alg": "ES256", "kid": ["first"]}, claims) + "." + signature,
        "garbage": "a.b.c",
    }
    statuses = {name: await status_of(app, token) for name, token in tokens.items()}
    assert statuses == dict.fromkeys(tokens, 401)
    assert await status_of(app, good) == 404


async def test_api_4_a_key_of_another_kind_or_use_is_not_used(app: FastAPI, issuer: Issuer) -> None:
    password = b"p" * 32
    issuer.published += [
        {"kty": "oct", "kid": "password", "k": base64.urlsafe_b64encode(password).rstrip(b"=").decode()},
        {**public_jwk(issuer.keys["first"], "for encryption"), "use": "enc"},
    ]
    assert await status_of(app, signed_with(password, {"alg": "HS256", "kid": "password"}, issuer.claims())) == 401
    assert await status_of(app, issuer.token(headers={"kid": "for encryption"})) == 401
    assert await status_of(app, issuer.token()) == 404


async def test_api_4_an_rsa_key_takes_every_algorithm_of_its_kind_unless_it_names_one(
    app: FastAPI, issuer: Issuer
) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    issuer.published += [{**public, "kid": "any"}, {**public, "kid": "one", "alg": "RS256"}]
    for key_id, algorithm, status in (
        ("any", "RS256", 404),
        ("any", "PS512", 404),
        ("one", "RS256", 404),
        ("one", "PS256", 401),
    ):
        token = jwt.encode(issuer.claims(), key, algorithm=algorithm, headers={"kid": key_id})
        assert await status_of(app, token) == status, (key_id, algorithm)


async def test_api_4_a_rotated_key_works_at_once_and_the_earlier_one_no_longer(
    settings: Settings, issuer: Issuer
) -> None:
    app = create_app(settings, timeouts=Timeouts(issuer_unknown_key=0))
    earlier = issuer.token()
    assert await status_of(app, earlier) == 404
    issuer.rotate("second")
    assert await status_of(app, issuer.token()) == 404
    assert await status_of(app, earlier) == 401


async def test_api_4_a_key_that_the_issuer_withdrew_is_rejected_after_the_next_refresh(
    renewing_app: FastAPI, issuer: Issuer
) -> None:
    token = issuer.token()
    assert await status_of(renewing_app, token) == 404
    issuer.rotate("second")
    assert await status_of(renewing_app, token) == 401


async def test_api_4_unknown_keys_cost_the_issuer_one_request_in_half_a_minute(app: FastAPI, issuer: Issuer) -> None:
    assert await status_of(app, issuer.token()) == 404
    before = len(issuer.requests)
    for number in range(20):
        assert await status_of(app, issuer.token(headers={"kid": f"unknown-{number}"})) == 401
    assert len(issuer.requests) == before


async def test_api_4_while_the_issuer_is_down_its_cached_keys_are_used(
    renewing_app: FastAPI, issuer: Issuer, settings: Settings
) -> None:
    assert await status_of(renewing_app, issuer.token()) == 404
    issuer.is_down = True
    issuer.keys["second"] = ec.generate_private_key(ec.SECP256R1())
    assert await status_of(renewing_app, issuer.token(key_id="first")) == 404
    assert await status_of(renewing_app, issuer.token(key_id="second")) == 503
    other = create_app(settings, timeouts=Timeouts(issuer_failure=0))
    async with client_of(other, issuer.token(key_id="first")) as http:
        answer = await http.get("/workflow")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["type"].endswith(":issuer-unavailable")
        assert (await http.get("/me")).status_code == 503
    issuer.is_down = False
    assert await status_of(other, issuer.token(key_id="first")) == 404


async def test_api_4_the_configuration_of_another_issuer_is_rejected(app: FastAPI, issuer: Issuer) -> None:
    issuer.claimed_issuer = "https://login.example"
    assert await status_of(app, issuer.token()) == 503


async def test_api_4_keys_and_tokens_are_accepted_where_both_are_set(issuer: Issuer, tmp_path: Path) -> None:
    auth = {"keys": True, "oidc": {"issuer": issuer.url, "audience": AUDIENCE}}
    settings = Settings(state_dir=tmp_path, auth=auth)
    app = create_app(settings)
    assert await status_of(app, await key_of(settings, COLUMNS[-1])) == 404
    assert await status_of(app, issuer.token()) == 404


async def test_api_4_with_only_an_issuer_keys_are_rejected(app: FastAPI, settings: Settings) -> None:
    assert await status_of(app, await key_of(settings, COLUMNS[-1])) == 401
