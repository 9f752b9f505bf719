"""Logging in to the page with a key or token (API-4)."""

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from turnkeeper.api.bodies import Login
from turnkeeper.api.callers import Identity
from turnkeeper.api.changes import Refusal
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.http.openapi import OPEN, VERIFIED, errors
from turnkeeper.api.http.responses import problem_response
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.roles import access
from turnkeeper.api.routes.gateway import count_request, describe, get_me
from turnkeeper.api.services import Services
from turnkeeper.features.access.audit import AuditRecorder
from turnkeeper.features.access.credentials import LIFETIME, CredentialAuthenticator, cookie_name, login_token
from turnkeeper.models.http_responses import Me
from turnkeeper.models.settings.origins import origin_at, parse_origin
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.database.database import StoreUnavailableError

router = APIRouter(tags=["login"])


@router.post(
    "/login",
    operation_id="log_in",
    responses=errors(*OPEN, *VERIFIED, "foreign-origin", "too-large", "rate-limited"),
)
@access("open")
async def log_in(request: Request, response: Response, services: ServicesDep, body: Login) -> Me:
    """Check a key or token, and set a cookie for the page, which ends with it, at the latest after 7 days."""
    authenticator = request.app.state.authenticator
    if not isinstance(authenticator, CredentialAuthenticator) or not authenticator.is_on:
        return await get_me(request)
    credential = body.key.strip()
    identity = await _verified(request, credential, services)
    await services.get(AuditRecorder).record_once(identity.caller, "log_in", status=200)
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
    return describe(identity, has_authentication=True)


@router.post(
    "/logout",
    status_code=204,
    operation_id="log_out",
    responses=errors(*OPEN, "foreign-origin", "archive-unavailable", "rate-limited"),
)
@access("open")
async def log_out(request: Request, services: ServicesDep) -> Response:
    """End the login, and remove its cookie. The key stays valid. 503: only the cookie is removed."""
    authenticator: Authenticator = request.app.state.authenticator
    caller = None
    with suppress(ProblemError, StoreUnavailableError):  # a caller without a valid key can log out too
        caller = (await authenticator.identify(request)).caller
    count_request(request, caller)
    if caller and authenticator.is_on:
        with suppress(StoreUnavailableError):
            await services.get(AuditRecorder).record_once(caller, "log_out", status=204)
    response = Response(status_code=204)
    token = login_token(request.headers)
    if token and isinstance(authenticator, CredentialAuthenticator) and authenticator.is_on:
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
    authenticator: CredentialAuthenticator = request.app.state.authenticator
    try:
        identity = await authenticator.verify(credential)
    except ProblemError as error:
        count_request(request, None)  # not by the key: its id alone must not use up its owner's rate
        if error.caller:
            services.get(AuditRecorder).note_refusal(Refusal(error.caller, "log_in", 401))
        raise
    count_request(request, identity.caller)
    return identity


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
