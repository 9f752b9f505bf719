"""Sessions without a gateway, as in `tests/workflows`."""

from tests.workflows.conftest import env

__all__ = ["env"]
