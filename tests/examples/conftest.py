"""The fixture that users of the package have."""

from turnkeeper.testing.pytest_plugin import play, turnkeeper_server

__all__ = ["play", "turnkeeper_server"]
