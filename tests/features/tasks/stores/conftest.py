"""An empty database, as in `tests/stores`."""

from tests.stores.conftest import database, postgresql_url, server, url

__all__ = ["database", "postgresql_url", "server", "url"]
