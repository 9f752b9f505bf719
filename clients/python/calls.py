"""One call of the gateway: what is sent, what an error answer is made of, and what may be sent again.

A call that never reached the gateway can always be sent again. One that may have reached it is sent again only where
doing it twice is doing it once, as with prompts, which carry their own id.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from turnkeeper.clients.python.errors import (
    MAY_PASS,
    GatewayError,
    GatewayProblem,
    GatewayUnreachable,
    GatewayUnreadable,
    problem_in,
)
from turnkeeper.models.backoff import growing_pauses

Answer = TypeVar("Answer", bound=BaseModel)
Params = Mapping[str, str | float | bool | None]

TIMEOUT = httpx2.Timeout(10.0, connect=3.0)
"""The gateway answers within 3 s unless it is asked to wait."""

PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0

NO_ADDRESS = "that is no http address"

NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Calls:
    """Calls of the gateway at one address."""

    def __init__(self, http: httpx2.AsyncClient, url: str, *, patience: float) -> None:
        """Call through `http`, whose base is `url`; `patience`: seconds in which an unanswered call is sent again."""
        self._http = http
        self.url = url
        self._patience = patience

    async def ask(
        self,
        answer: type[Answer],
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        repeatable: bool = True,
        wait: float = 0.0,
    ) -> Answer:
        """Return the answer of a call as `answer`. `wait`: seconds that the gateway is asked to hold it.

        Raises:
            GatewayProblem: It answered with a problem.
            GatewayUnreachable: It did not answer, nor when it was asked again.
            GatewayUnreadable: It answered with something else.
        """
        response = await self.send(method, path, params=params, body=body, repeatable=repeatable, wait=wait)
        return self.read(answer, response)

    def read(self, answer: type[Answer], response: httpx2.Response) -> Answer:
        """Return what a response holds. Raises `GatewayUnreadable`."""
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise GatewayUnreadable(self.url) from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        repeatable: bool = True,
        wait: float = 0.0,
        patience: float | None = None,
    ) -> httpx2.Response:
        """Return the response to a call; like `ask`. `patience` takes the place of what was set for all calls."""
        content = body.model_dump(mode="json", exclude_none=True) if isinstance(body, BaseModel) else body
        request = self._http.build_request(
            method, path, params=given(params), json=content, timeout=_patient(wait) if wait else TIMEOUT
        )
        clock = asyncio.get_running_loop().time
        until = clock() + (self._patience if patience is None else patience)
        pauses = growing_pauses(PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            pause = next(pauses)
            try:
                response = await self._http.send(request)
            except httpx2.TransportError as error:
                may_be_repeated = repeatable or isinstance(error, NEVER_SENT)
                if not may_be_repeated or clock() + pause > until:
                    raise self._gone_wrong(error) from error
            except httpx2.RequestError as error:
                raise self._gone_wrong(error) from error
            else:
                await self._raise_problem(response)
                return response
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[httpx2.Response]:
        """Give a response that is read as it comes; it is sent once. Raises like `ask`, also inside the block.

        `silence`: seconds without anything to read after which the connection counts as lost.
        """
        patience = httpx2.Timeout(silence, connect=TIMEOUT.connect)
        try:
            async with self._http.stream(
                "GET", path, params=given(params), headers=dict(headers), timeout=patience
            ) as response:
                await self._raise_problem(response)
                yield response
        except httpx2.RequestError as error:
            raise self._gone_wrong(error) from error

    async def _raise_problem(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        problem = problem_in(await response.aread(), status=response.status_code)
        if problem is None and response.status_code in MAY_PASS:
            raise GatewayUnreachable(self.url, f"what answers in its place has status {response.status_code}")
        if problem is None:
            raise GatewayUnreadable(self.url)
        raise GatewayProblem(problem, retry_after=_seconds(response.headers.get("retry-after")))

    def _gone_wrong(self, error: httpx2.RequestError) -> GatewayError:
        # Somebody answered where there are no events in an event stream, or where a body can't be unpacked.
        if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.SSEError):
            return GatewayUnreachable(self.url, _reason(error))
        return GatewayUnreadable(self.url)


def checked_address(url: str) -> httpx2.URL:
    """Return `url` as an address that can be called. Raises `GatewayUnreachable`.

    >>> checked_address("http://127.0.0.1:8080/turnkeeper").port
    8080
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise GatewayUnreachable(url, NO_ADDRESS) from error
    # A port that no machine has would only be noticed by the system, far below.
    if address.scheme not in ("http", "https") or not address.host or not 0 < (address.port or 80) < 2**16:
        raise GatewayUnreachable(url, NO_ADDRESS)
    return address


def given(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields that have a value.

    >>> given({"limit": None, "wait": 0.5})
    {'wait': 0.5}
    """
    return {name: value for name, value in (fields or {}).items() if value is not None}


def _patient(wait: float) -> httpx2.Timeout:
    return httpx2.Timeout(TIMEOUT.read + wait if TIMEOUT.read else None, connect=TIMEOUT.connect)


def _seconds(header: str | None) -> float | None:
    # There are digits that are no decimals, such as "²".
    return float(header) if header and header.isdecimal() else None


def _reason(error: httpx2.TransportError) -> str:
    """Say in words what happened; libraries' own texts name system calls."""
    match error:
        case httpx2.ConnectError():
            return "nothing listens there"
        case httpx2.TimeoutException():
            return "it does not answer"
        case _:
            return "the connection was lost"
