"""How callers of updates and queries learn why they are refused (SES-10)."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import REFUSED, Refused


@contextmanager
def report_refusals() -> Iterator[None]:
    """Tell the caller of an update or a query why it is refused; nothing of it enters history.

    Of a query's failure only the text arrives, so it begins with a word that tells it from a bug of ours.
    """
    try:
        yield
    except Refused as refusal:
        # Without its cause, which Temporal would send along.
        raise ApplicationError(f"{REFUSED}{refusal.message}", refusal.field, type=refusal.reason) from None
