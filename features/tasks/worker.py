"""What tasks add to the worker: the activities that prepare what a task is given."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from turnkeeper.activities.worker_feature import WorkerFeature, WorkerParts
from turnkeeper.features.tasks.activities import HandOffActivities, TaskTextActivities
from turnkeeper.features.tasks.offline import condensed_of
from turnkeeper.features.tasks.rules.condensing import INSTRUCTION


class _Tasks(WorkerFeature):
    offline_texts = MappingProxyType({INSTRUCTION: condensed_of})

    def activities(self, parts: WorkerParts) -> Sequence[Callable[..., Any]]:
        texts, stores = TaskTextActivities(parts.texts), parts.stores
        hand_off = HandOffActivities(parts.models, parts.texts, stores.blobs, stores.archive, parts.client)
        return texts.read_large_text, texts.keep_large_result, hand_off.condense_history, hand_off.prepare_sub_task


WORKER = _Tasks()
