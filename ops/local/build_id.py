"""The worker's build id, which names this release's code in every session's history."""

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path

PACKAGES = ("activities", "models", "stores", "workflows")
"""The packages whose code a session runs."""

ID_CHARS = 12
"""Short, since every workflow task's event repeats it."""


@cache
def own_build_id() -> str:
    """Return the build id of the code that this process runs; it is read once."""
    return build_id()


def build_id(root: Path = Path(__file__).parents[2]) -> str:
    """Return a hash of the packages in `root` and the version of Temporal's SDK.

    The SDK's own default reads every imported module again: a fifth of a worker's start (measured).
    """
    digest = hashlib.sha256(importlib.metadata.version("temporalio").encode())
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"\n{file.relative_to(root)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:ID_CHARS]
