"""Models are named `provider:name` (AGT-4)."""

from models.errors import Refused

KNOWN_PROVIDERS = ("offline",)
"""The providers this version can ask."""


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the name. Raises `Refused` naming what is allowed.

    >>> split_model("offline:script/demo"), split_model("offline:")
    (('offline', 'script/demo'), ('offline', ''))
    """
    provider, colon, name = model.partition(":")
    if not colon or provider not in KNOWN_PROVIDERS:
        allowed = ", ".join(f"{known}:" for known in KNOWN_PROVIDERS)
        raise Refused("invalid", f"model: {model[:60]!a} is not provider:name with one of {allowed}.", field="model")
    return provider, name
