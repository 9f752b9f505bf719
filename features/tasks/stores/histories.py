"""Storing what a task refers to before it is started: attachments, and texts to condense (CTX-15, CTX-16)."""

import logging

from turnkeeper.features.tasks.session.task import PreparedTask
from turnkeeper.features.tasks.session.task_input import TextsToCondense
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.large_texts import Texts
from turnkeeper.stores.blobs import Blobs, attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError

STORE_IS_DOWN = "the store of large texts can't be reached."

_log = logging.getLogger(__name__)


async def store_hand_off(
    blobs: Blobs, prepared: PreparedTask, *, task_id: WorkflowId, parent_id: WorkflowId | None
) -> tuple[PreparedTask, TextsToCondense | None]:
    """Store what the task `task_id` refers to; return the task as it can be started, and its texts to condense.

    Attachments of an inherited conversation are copied from the session `parent_id`. While the store is down,
    attachments are only named, and texts stay cut. A repetition changes nothing.
    """
    try:
        if parent_id and (missing := prepared.missing_hashes):
            prepared = prepared.with_contents(await blobs.get_data(attachments_owner(parent_id), missing))
        if prepared.contents:
            await blobs.put_data(attachments_owner(task_id), prepared.contents.values())
    except StoreUnavailableError as error:
        _log.warning("a task's attachments are only named, since the store is down: %s", error)
        prepared = prepared.without_attachments(STORE_IS_DOWN)
    if prepared.long_texts is None:
        return prepared, None
    texts = Texts()
    blob = texts.add(prepared.long_texts.model_dump_json())
    try:
        await blobs.put(task_id, texts.by_hash.values())
    except StoreUnavailableError as error:
        _log.warning("a task's long texts are cut, not condensed, since the store is down: %s", error)
        return prepared.without_condensing(STORE_IS_DOWN), None
    return prepared, TextsToCondense(blob=blob, count=len(prepared.long_texts.texts))
