"""Models are named `provider:name` (AGT-4)."""

import re

from turnkeeper.models.errors import RejectedError

KNOWN_PROVIDERS: tuple[str, ...] = ("anthropic", "openai", "openai-chat", "offline")
"""The providers that this version has."""

_NAME = re.compile(r"[!-~]{0,128}")

MODEL_PATTERN = f"^({'|'.join(KNOWN_PROVIDERS)}):[!-~]{{0,128}}$"
"""Pattern of model names, for clients that check one before they send it."""


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the name, which may be empty. Raises `RejectedError` naming what is allowed.

    >>> split_model("offline:script/demo"), split_model("offline:")
    (('offline', 'script/demo'), ('offline', ''))
    """
    provider, colon, name = model.partition(":")
    if not colon or provider not in KNOWN_PROVIDERS:
        allowed = ", ".join(KNOWN_PROVIDERS)
        raise RejectedError(
            "invalid",
            f"model: {model[:60]!a} names none of the providers {allowed}; write it as openai:gpt-5.5.",
            field="model",
        )
    if not _NAME.fullmatch(name):
        raise RejectedError(
            "invalid",
            f"model: the name in {model[:60]!a} is not of 0 to 128 printable ASCII characters without spaces.",
            field="model",
        )
    return provider, name


def checked_model(model: str) -> str:
    """Return `model`, for validators. Raises `ValueError` naming what is allowed."""
    try:
        split_model(model)
    except RejectedError as rejection:
        raise ValueError(rejection.message.removeprefix("model: ").removesuffix(".")) from rejection
    return model
