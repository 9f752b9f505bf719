"""Who one is (API-4): what the page and the terminal ask first."""

from fastapi import APIRouter, Request

from turnkeeper.api.callers import Caller, Identity, caller_of
from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.http.limits import RequestRates
from turnkeeper.api.http.openapi import OPEN, errors
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.roles import access
from turnkeeper.models.http_responses import CallerDescription, Me

router = APIRouter(tags=["login"])


@router.get(
    "/me", operation_id="get_me", responses=errors(*OPEN, "archive-unavailable", "issuer-unavailable", "rate-limited")
)
@access("open")
async def get_me(request: Request) -> Me:
    """Return who the request's key or token, or the page's login, makes the caller; null without a valid one."""
    authenticator: Authenticator = request.app.state.authenticator
    try:
        identity = await authenticator.identify(request)
    except ProblemError as error:
        if error.problem.status != 401:
            raise
        count_request(request, None)
        return Me(authentication=True, caller=None)
    count_request(request, identity.caller)
    return describe(identity, has_authentication=authenticator.is_on)


def describe(identity: Identity, *, has_authentication: bool) -> Me:
    caller = identity.caller
    description = CallerDescription(tenant=caller.tenant, user=caller.user, role=caller.role)
    return Me(authentication=has_authentication, caller=description)


def count_request(request: Request, caller: Caller | None) -> None:
    """Count a request of an open route, by its address if it has no valid credential.

    Raises `ProblemError` 429 beyond the rate.
    """
    if caller_of(request.scope):
        return  # without authentication, all requests are counted before
    rates: RequestRates = request.app.state.rates
    rates.check(caller, address=request.client.host if request.client else "")
