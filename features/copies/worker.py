"""What copies add to the worker: the workflow that copies a session, and its activities."""

from collections.abc import Callable, Sequence
from typing import Any

from turnkeeper.activities.worker_feature import WorkerFeature, WorkerParts
from turnkeeper.features.copies.activities import CopyActivities
from turnkeeper.features.copies.document.reading import BYTES_PER_VALUE
from turnkeeper.features.copies.workflow import CopySession


class _Copies(WorkerFeature):
    workflows = (CopySession,)

    def activities(self, parts: WorkerParts) -> Sequence[Callable[..., Any]]:
        max_values = parts.settings.api_max_import_bytes // BYTES_PER_VALUE
        copying = CopyActivities(parts.client, parts.stores, max_values=max_values)
        return copying.store_copy, copying.drop_document, copying.clear_copy


WORKER = _Copies()
