"""The failure of activities while the stores can't be reached."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE
from turnkeeper.stores.database.database import StoreUnavailableError


@contextmanager
def store_failures() -> Iterator[None]:
    """Convert `StoreUnavailableError` to the retryable failure that workflows and gateways recognise."""
    try:
        yield
    except StoreUnavailableError as error:
        raise ApplicationError(str(error), type=ARCHIVE_UNAVAILABLE) from error
