"""A gateway that really listens, and the programs that are let loose on it."""

from tests.api.conftest import asked, on, url

__all__ = ["asked", "on", "url"]
