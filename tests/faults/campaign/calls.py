"""One HTTP request to a gateway, sent with plain httpx, and its outcome."""

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.faults.campaign.evidence import Log, Outcome, UntypedError

TIMEOUT = httpx.Timeout(10.0, connect=3.0)

TYPED = frozenset({503, 504})
"""The only 5xx statuses that a gateway may answer with, and only as a problem."""


@dataclass(frozen=True)
class Reply:
    """The outcome of a request. `body` is the JSON of the answer, None if there was none."""

    outcome: Outcome
    status: int | None = None
    body: Any = None
    retry_after: float = 0.0

    @property
    def problem(self) -> str | None:
        """The last word of a problem's type."""
        return self.body.get("type", "").rpartition(":")[2] if self.status and self.status >= 400 else None


class Calls:
    """Requests to one gateway."""

    def __init__(self, url: str, log: Log) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False, limits=httpx.Limits())
        self._log = log

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, path: str, *, body: object = None, params: dict[str, Any] | None = None, wait: float = 0.0
    ) -> Reply:
        """Send a request and return its outcome; `wait`: seconds for which the gateway may hold it."""
        query = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = httpx.Timeout(10.0 + wait, connect=3.0)
        try:
            response = await self._http.request(method, path, params=query, json=body, timeout=timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return Reply("failed")
        except httpx.TransportError:
            return Reply("unknown")
        content = _json(response)
        if response.status_code >= 500:
            self._check(f"{method} {path.partition('?')[0]}", response, content)
        if response.is_success:
            return Reply("ok", response.status_code, content)
        outcome: Outcome = "unknown" if response.status_code >= 500 else "failed"
        retry_after = response.headers.get("retry-after", "")
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        return Reply(outcome, response.status_code, content if isinstance(content, dict) else {}, seconds)

    def _check(self, request: str, response: httpx.Response, content: object) -> None:
        is_problem = isinstance(content, dict) and str(content.get("type", "")).startswith("urn:turnkeeper:problem:")
        if response.status_code not in TYPED or not is_problem:
            self._log.add(UntypedError(request, response.status_code, self._log.now(), response.text[:300]))


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content) if response.content else None
    except ValueError:
        return None
