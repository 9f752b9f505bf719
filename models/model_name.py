"""Models are named `provider:name` (AGT-4)."""

import re

from turnkeeper.models.errors import Refused

KNOWN_PROVIDERS: tuple[str, ...] = ("anthropic", "openai", "openai-chat", "offline")
"""The providers this version can ask."""

_NAME = re.compile(r"[!-~]{0,128}")

MODEL_PATTERN = f"^({'|'.join(KNOWN_PROVIDERS)}):[!-~]{{0,128}}$"
"""Models' names, for who wants to check one before it is sent."""


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the name, which may be empty. Raises `Refused` naming what is allowed.

    >>> split_model("offline:script/demo"), split_model("offline:")
    (('offline', 'script/demo'), ('offline', ''))
    """
    provider, colon, name = model.partition(":")
    if not colon or provider not in KNOWN_PROVIDERS:
        allowed = ", ".join(KNOWN_PROVIDERS)
        raise Refused(
            "invalid",
            f"model: write {model[:60]!a} as provider:name, such as openai:gpt-5.5. Providers: {allowed}.",
            field="model",
        )
    if not _NAME.fullmatch(name):
        raise Refused(
            "invalid",
            f"model: the name in {model[:60]!a} is not of 0 to 128 printable ASCII characters without spaces.",
            field="model",
        )
    return provider, name


def checked_model(model: str) -> str:
    """Return `model`, for validators. Raises `ValueError` naming what is allowed."""
    try:
        split_model(model)
    except Refused as refusal:
        raise ValueError(refusal.message.removeprefix("model: ").removesuffix(".")) from refusal
    return model
