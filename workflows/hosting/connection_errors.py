"""Why Temporal can't be reached, in words: the SDK only has the text of its Rust core (OPS-2)."""

import re
from typing import NamedTuple

from temporalio.service import RPCError, RPCStatusCode


class Reason(NamedTuple):
    """What is wrong, as part of a sentence, and what to do about it; without `fix`, the address may be wrong."""

    text: str
    fix: str = ""


UNTRUSTED = Reason(
    "its TLS certificate is not from an authority that this machine trusts",
    "Set TEMPORAL_TLS_SERVER_CA_CERT_PATH to the authority's certificate",
)
KEY_REJECTED = Reason("it rejected the API key", "Check TEMPORAL_API_KEY")

_REASONS = {
    r"dns error": Reason("its host name is unknown"),
    r"InvalidCertificate\((Expired|NotValidYet)": Reason(
        "its TLS certificate is not valid now", "Renew it, or check the clocks of both machines"
    ),
    r"InvalidCertificate\(NotValidForName": Reason(
        "its TLS certificate is for another name", "Check TEMPORAL_ADDRESS, or set TEMPORAL_TLS_SERVER_NAME"
    ),
    r"InvalidCertificate": UNTRUSTED,
    r"AlertReceived": Reason(
        "it did not accept our side of TLS",
        "Check TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH",
    ),
    r"InvalidMessage": Reason("it does not use TLS, and we do", "Check TEMPORAL_TLS and TEMPORAL_ADDRESS"),
    r"code: Unauthenticated": KEY_REJECTED,
    r"code: PermissionDenied": Reason(
        "it does not permit this API key to use it", "Check TEMPORAL_API_KEY and TEMPORAL_NAMESPACE"
    ),
    r"connection closed|http2 error": Reason(
        "it closed the connection: it uses TLS and we don't, or it is no Temporal server",
        "Check TEMPORAL_TLS and TEMPORAL_ADDRESS",
    ),
}
"""By what the SDK's text contains; the first that fits counts."""

_OF_STATUS = {
    RPCStatusCode.UNAUTHENTICATED: KEY_REJECTED,
    RPCStatusCode.PERMISSION_DENIED: _REASONS["code: PermissionDenied"],
}


def reason_of(error: Exception) -> Reason:
    """Return why a client could not connect, or why its first call failed.

    >>> reason_of(RuntimeError('tonic::transport::Error(Transport, ConnectError(ConnectError("dns error", ...')).text
    'its host name is unknown'
    >>> reason_of(TimeoutError()).text
    'no answer'
    """
    if isinstance(error, RPCError) and error.status in _OF_STATUS:
        return _OF_STATUS[error.status]
    for pattern, reason in _REASONS.items():
        if re.search(pattern, str(error)):
            return reason
    quoted = re.findall(r'(?:message|error): "([^"]+)"', str(error))
    return Reason(quoted[-1] if quoted else str(error) or "no answer")
