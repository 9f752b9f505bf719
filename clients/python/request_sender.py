"""HTTP requests to the gateway: sending, retrying, and mapping errors.

A request that never reached the gateway is always sent again, and so is one over a limit, after the time that the
gateway says. One that may have reached it is sent again only if it is idempotent, as a prompt is by its id.

Errors between a client and the gateway:

    GatewayError
    ├── GatewayProblemError       the gateway answered with a problem (RFC 9457), which says what is wrong
    ├── GatewayUnreachableError   there was no response, or only a proxy's: trying again may help
    ├── CopyFailedError           a fork or an import has failed, and nothing is left of it
    └── GatewayUnreadableError    another program answered, or a gateway of another version: trying again won't help
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from turnkeeper.models.errors import TurnkeeperError, growing_pauses

TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses after which a later call may succeed: too many requests, or a service behind the gateway is down."""


class FieldProblem(BaseModel):
    """An invalid field: its path, and the valid range; for a task also its shortened value."""

    field: str
    reason: str
    value: str | None = None


class Problem(BaseModel):
    """An error response (RFC 9457). `type` is stable; `errors` lists the fields of an invalid request."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None
    limit: str | None = None
    """For `rate-limited`: the setting that limits the call, which had no effect."""

    @property
    def name(self) -> str:
        """The last word of `type`, which identifies the problem.

        >>> Problem(type="urn:turnkeeper:problem:unknown-session", title="", status=404, detail="").name
        'unknown-session'
        """
        return self.type.rpartition(":")[2]


class GatewayError(TurnkeeperError):
    """A call of the gateway failed."""


class CopyFailedError(GatewayError):
    """A fork or an import has failed; the message says why."""


class GatewayProblemError(GatewayError):
    """The gateway answered with a problem. `retry_after`: its header in seconds, if there is one."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same call may succeed later."""
        return self.problem.status in TEMPORARY_STATUSES


class GatewayUnreachableError(GatewayError):
    """No gateway answered at `url`, for a `reason` in words."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"The gateway at {url} can't be reached: {reason}")
        self.url = url
        self.reason = reason


class GatewayUnreadableError(GatewayError):
    """The server at `url` is not a gateway, or is one of another version."""

    def __init__(self, url: str) -> None:
        super().__init__(f"The server at {url} is not a Turnkeeper gateway that this client understands.")
        self.url = url


def parse_problem(body: bytes, *, status: int) -> Problem | None:
    """Return the problem in a response's body; None if the response is not a gateway's.

    >>> parse_problem(b"<html>Bad gateway</html>", status=502) is None
    True
    """
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return None
    return problem if problem.status == status else None


Answer = TypeVar("Answer", bound=BaseModel)
Params = Mapping[str, str | float | bool | None]

TIMEOUT = httpx2.Timeout(10.0, connect=3.0)
"""The gateway responds within 3 s, unless a request asks it to wait."""

MIN_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 2.0

NO_ADDRESS = "this is not an http address"

NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class RequestSender:
    """Sends requests to one gateway."""

    def __init__(self, http: httpx2.AsyncClient, url: str, *, patience: float) -> None:
        """`http` has the base URL `url`; a request without a response is sent again for `patience` seconds."""
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
        """Return the response as `answer`. `wait`: for how many seconds the gateway may hold the request.

        Raises:
            GatewayProblemError: The response is a problem.
            GatewayUnreachableError: There was no response, even after retries.
            GatewayUnreadableError: The response is something else.
        """
        response = await self.send(method, path, params=params, body=body, repeatable=repeatable, wait=wait)
        return self.parse(answer, response)

    def parse(self, answer: type[Answer], response: httpx2.Response) -> Answer:
        """Return the response's body as `answer`. Raises `GatewayUnreadableError`."""
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise GatewayUnreadableError(self.url) from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        content: bytes | None = None,
        media_type: str = "",
        repeatable: bool = True,
        wait: float = 0.0,
        patience: float | None = None,
    ) -> httpx2.Response:
        """Return the response; arguments and errors as of `ask`. `patience` replaces the sender's own.

        `content` of the `media_type` is sent as it is, instead of a `body`.
        """
        json = body.model_dump(mode="json", exclude_none=True) if isinstance(body, BaseModel) else body
        request = self._http.build_request(
            method,
            path,
            params=without_none(params),
            json=json,
            content=content,
            headers={"Content-Type": media_type} if media_type else None,
            timeout=_timeout(wait) if wait else TIMEOUT,
        )
        clock = asyncio.get_running_loop().time
        until = clock() + (self._patience if patience is None else patience)
        pauses = growing_pauses(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            pause = next(pauses)
            try:
                response = await self._http.send(request)
                await self._raise_problem(response)
            except GatewayProblemError as problem:
                # Over a limit nothing was done, so any request may be sent again.
                if problem.problem.limit is None or problem.retry_after is None:
                    raise
                pause = problem.retry_after
                if clock() + pause > until:
                    raise
            except httpx2.TransportError as error:
                can_repeat = repeatable or isinstance(error, NEVER_SENT)
                if not can_repeat or clock() + pause > until:
                    raise self._to_gateway_error(error) from error
            except httpx2.RequestError as error:
                raise self._to_gateway_error(error) from error
            else:
                return response
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[httpx2.Response]:
        """Yield a streaming response; the request is sent once. Raises as `ask` does, also inside the block.

        `silence`: seconds without data after which the connection counts as lost.
        """
        timeout = httpx2.Timeout(silence, connect=TIMEOUT.connect)
        try:
            async with self._http.stream(
                "GET", path, params=without_none(params), headers=dict(headers), timeout=timeout
            ) as response:
                await self._raise_problem(response)
                yield response
        except httpx2.RequestError as error:
            raise self._to_gateway_error(error) from error

    async def _raise_problem(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        problem = parse_problem(await response.aread(), status=response.status_code)
        if problem is None and response.status_code in TEMPORARY_STATUSES:
            raise GatewayUnreachableError(self.url, f"a proxy answers with status {response.status_code}")
        if problem is None:
            raise GatewayUnreadableError(self.url)
        raise GatewayProblemError(problem, retry_after=_seconds(response.headers.get("retry-after")))

    def _to_gateway_error(self, error: httpx2.RequestError) -> GatewayError:
        # With an `SSEError` or a body that can't be decompressed, some server did answer.
        if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.SSEError):
            return GatewayUnreachableError(self.url, _reason(error))
        return GatewayUnreadableError(self.url)


def parse_address(url: str) -> httpx2.URL:
    """Return `url` parsed. Raises `GatewayUnreachableError` if it is no http address.

    >>> parse_address("http://127.0.0.1:8080/turnkeeper").port
    8080
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise GatewayUnreachableError(url, NO_ADDRESS) from error
    # Otherwise an impossible port would only fail in the socket call.
    if address.scheme not in ("http", "https") or not address.host or not 0 < (address.port or 80) < 2**16:
        raise GatewayUnreachableError(url, NO_ADDRESS)
    return address


def without_none(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields that are not None.

    >>> without_none({"limit": None, "wait": 0.5})
    {'wait': 0.5}
    """
    return {name: value for name, value in (fields or {}).items() if value is not None}


def _timeout(wait: float) -> httpx2.Timeout:
    return httpx2.Timeout(TIMEOUT.read + wait if TIMEOUT.read else None, connect=TIMEOUT.connect)


def _seconds(header: str | None) -> float | None:
    # Not `isdigit`, which is true for "²".
    return float(header) if header and header.isdecimal() else None


def _reason(error: httpx2.TransportError) -> str:
    """Return the reason in words, since the library's own texts name system calls."""
    match error:
        case httpx2.ConnectError():
            return "nothing listens there"
        case httpx2.TimeoutException():
            return "it does not answer"
        case _:
            return "the connection was lost"
