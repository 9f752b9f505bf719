"""An OpenID Connect issuer of the tests' own, on loopback: it signs what a test tells it to."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

AUDIENCE = "turnkeeper"


@dataclass
class Issuer:
    """What it publishes, and how often it was asked. `keys` are published, by their ids; it signs with any of them."""

    url: str = ""
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    published: list[dict[str, Any]] = field(default_factory=list)
    claimed_issuer: str | None = None
    """What its configuration says instead of its address."""
    is_down: bool = False
    requests: list[str] = field(default_factory=list)

    def rotate(self, key_id: str) -> None:
        """Publish a new key, and no other."""
        self.published.clear()
        self.add(key_id)

    def add(self, key_id: str) -> None:
        """Publish a further key."""
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())
        self.published.append(public_jwk(self.keys[key_id], key_id))

    def token(self, *, key_id: str | None = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token, by default a good one of the newest key; a claim of `None` is left out."""
        key_id = key_id or list(self.keys)[-1]
        head = {"kid": key_id, **(headers or {})}
        return jwt.encode(self.claims(**claims), self.keys[key_id], algorithm="ES256", headers=head)

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "u-1", "iat": now, "exp": now + 300, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def answer(self, path: str) -> dict[str, Any] | None:
        self.requests.append(path)
        match path:
            case _ if self.is_down:
                return None
            case "/.well-known/openid-configuration":
                return {"issuer": self.claimed_issuer or self.url, "jwks_uri": f"{self.url}/keys"}
            case "/keys":
                return {"keys": self.published}
        return None


def public_jwk(key: ec.EllipticCurvePrivateKey, key_id: str) -> dict[str, Any]:
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": key_id, "use": "sig", "alg": "ES256"}


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """An issuer with one key."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = issuer.answer(self.path)
            body = json.dumps(answer).encode()
            self.send_response(503 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    issuer.add("first")
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
