"""Logging in to the page with a key or token, and who one is (API-4)."""

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from turnkeeper.api.bodies import Login
from turnkeeper.api.callers import Caller, caller_of
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.limits import RequestRates
from turnkeeper.api.http.openapi import OPEN, VERIFIED, errors
from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.identity import Identity
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.services import Services
from turnkeeper.features.access.auth.browser_logins import LIFETIME, cookie_name, login_token
from turnkeeper.features.access.auth.credentials import Authenticator
from turnkeeper.models.http_responses import CallerDescription, Me
from turnkeeper.models.settings.origins import origin_at, parse_origin
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.database.database import StoreUnavailableError

router = APIRouter(tags=["login"])


@router.get(
    "/me", operation_id="get_me", responses=errors(*OPEN, "archive-unavailable", "issuer-unavailable", "rate-limited")
)
async def get_me(request: Request) -> Me:
    """Return who the request's key or token, or the page's login, makes the caller; null without a valid one."""
    authenticator: Authenticator = request.app.state.authenticator
    try:
        identity = await authenticator.identify(request.headers)
    except ProblemError as error:
        if error.problem.status != 401:
            raise
        _count(request, None)
        return Me(authentication=True, caller=None)
    _count(request, identity.caller)
    return _me(authenticator, identity)


@router.post(
    "/login",
    operation_id="log_in",
    responses=errors(*OPEN, *VERIFIED, "foreign-origin", "too-large", "rate-limited"),
)
async def log_in(request: Request, response: Response, services: ServicesDep, body: Login) -> Me:
    """Check a key or token, and set a cookie for the page, which ends with it, at the latest after 7 days."""
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.is_on:
        return await get_me(request)
    credential = body.key.strip()
    identity = await _verified(request, credential, services)
    await services.audit.record_once(identity.caller, "log_in", status=200)
    is_secure = _is_secure(request, services.settings)
    response.set_cookie(
        cookie_name(request.headers, is_secure=is_secure),
        await authenticator.logins.create(identity),
        max_age=int(LIFETIME.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_secure,
    )
    return _me(authenticator, identity)


@router.post(
    "/logout",
    status_code=204,
    operation_id="log_out",
    responses=errors(*OPEN, "foreign-origin", "archive-unavailable", "rate-limited"),
)
async def log_out(request: Request, services: ServicesDep) -> Response:
    """End the login, and remove its cookie. The key stays valid. 503: only the cookie is removed."""
    authenticator: Authenticator = request.app.state.authenticator
    caller = None
    with suppress(ProblemError, StoreUnavailableError):  # a caller without a valid key can log out too
        caller = (await authenticator.identify(request.headers)).caller
    _count(request, caller)
    if caller and authenticator.is_on:
        with suppress(StoreUnavailableError):
            await services.audit.record_once(caller, "log_out", status=204)
    response = Response(status_code=204)
    if authenticator.is_on and (token := login_token(request.headers)):
        try:
            await authenticator.logins.end(token)
        except StoreUnavailableError as error:
            detail = (
                f"{error} This browser is logged out, but a copy of its cookie stays valid until the login expires."
            )
            response = problem_response(problem("archive-unavailable", detail))
    for is_secure in (True, False):
        name = cookie_name(request.headers, is_secure=is_secure)
        response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=is_secure)
    return response


async def _verified(request: Request, credential: str, services: Services) -> Identity:
    authenticator: Authenticator = request.app.state.authenticator
    try:
        identity = await authenticator.verify(credential)
    except ProblemError as error:
        _count(request, None)  # not by the key: its id alone must not use up its owner's rate
        if error.caller:
            services.audit.note_refusal(error.caller, operation="log_in", status=401, session_id=None)
        raise
    _count(request, identity.caller)
    return identity


def _count(request: Request, caller: Caller | None) -> None:
    """Count the request, by its address if it has no valid credential. Raises `ProblemError` 429 beyond the rate."""
    if caller_of(request.scope):
        return  # without authentication, all requests are counted before
    rates: RequestRates = request.app.state.rates
    rates.check(caller, address=request.client.host if request.client else "")


def _me(authenticator: Authenticator, identity: Identity) -> Me:
    caller = identity.caller
    description = CallerDescription(tenant=caller.tenant, user=caller.user, role=caller.role)
    return Me(authentication=authenticator.is_on, caller=description)


def _is_secure(request: Request, settings: Settings) -> bool:
    """Return whether the browser uses https: here, or at a proxy at `public_url`.

    The page's origin says that too, since some proxies don't pass the host that the browser asked for.
    """
    public = parse_origin(settings.public_url) if settings.public_url else None
    if request.url.scheme == "https" or public is None or public.scheme != "https":
        return request.url.scheme == "https"
    address = origin_at("https", request.headers.get("host", ""))
    is_at_its_host = address is not None and address.host == public.host
    return is_at_its_host or parse_origin(request.headers.get("origin", "")) == public
