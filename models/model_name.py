"""Names of models: `<provider>:<name>` (AGT-4)."""

import re

from models.errors import Refused

KNOWN_PROVIDERS: tuple[str, ...] = ("offline",)
"""Every provider a session may name; the worker has one behind each."""

_NAME = re.compile(r"[!-~]{0,128}")


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the provider's own name of a model; that name may be empty, or hold further colons.

    Raises `Refused` for a malformed name and for an unknown provider.

    >>> split_model("offline:"), split_model("offline:script/demo")
    (('offline', ''), ('offline', 'script/demo'))
    """
    provider, colon, name = model.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise _refused(model, "is not of the form <provider>:<name>, the name at most 128 printable ASCII characters")
    if provider not in KNOWN_PROVIDERS:
        raise _refused(model, "names no known provider")
    return provider, name


def _refused(model: str, why: str) -> Refused:
    # Whatever was sent is shown escaped and cut: it could be long, or hold what no payload carries.
    providers = ", ".join(KNOWN_PROVIDERS)
    return Refused("invalid", f"The model {model[:60]!a} {why}. Providers: {providers}.", field="model")
