"""The worker dies while a session is copied: the copy is whole, and the original untouched: SES-18, OPS-10."""

import json
import signal
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.faults.scripted import next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.features.copies.record import EXPORTS
from tests.harness import DrivenSession, until_copied
from turnkeeper.features.copies.document.document import CopyOrder, ForkSource, StoredDocument
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.blobs import document_owner
from turnkeeper.stores.stores import Stores


@pytest.mark.parametrize("dies_at", ["store_copy begins", "store_copy has run", "drop_document has run"])
async def test_ses_18_an_import_is_complete_wherever_the_worker_dies(
    temporal: Client, tmp_path: Path, dies_at: str
) -> None:
    _, settings = await start(temporal, tmp_path, [], model="offline:")
    body, new_id = (EXPORTS / "v1.json").read_bytes(), WorkflowId(f"copy-{uuid4()}")
    document, middle = sha256(body).hexdigest(), len(body) // 2
    parts = [body[:middle], body[middle:]]
    async with Stores.of(Settings(**settings)) as stores:
        await stores.blobs.put_data(document_owner(new_id), parts)
        await temporal.start_workflow(
            "CopySession",
            CopyOrder(start=SessionInput(model="offline:"), document=document),
            id=new_id,
            task_queue=settings["task_queue"],
            start_signal="document_stored",
            start_signal_args=[StoredDocument(parts=[sha256(part).hexdigest() for part in parts])],
        )
        async with doomed_worker(plan_of(temporal, settings, dies_at=dies_at)) as doomed:
            assert await doomed.exit_code() == -signal.SIGKILL
        copy = DrivenSession(temporal, temporal.get_workflow_handle(new_id), patient=True)
        async with next_worker(temporal, settings):
            await until_copied(copy.handle)
            await copy.until(lambda state: state.session.turn_count == 12, turns=0)
            await copy.prompt(id="next", text="go on")
            await copy.until(lambda state: state.session.turn_count == 13 and state.status == "idle", turns=0)
            turns = (await copy.state()).messages
        archived = [row.turn for row in await stores.archive.range(new_id, 1, 12 - (len(turns) - 1))]
        ids = [one["turn"]["id"] for one in json.loads(body)["turns"]]
        assert [turn.id for turn in [*archived, *turns]] == [*ids, "next"]
        assert await stores.blobs.read_sizes(document_owner(new_id), [sha256(part).hexdigest() for part in parts]) == {}


async def test_ses_18_a_fork_is_complete_if_the_worker_dies(temporal: Client, tmp_path: Path) -> None:
    original, settings = await start(temporal, tmp_path, [], model="offline:")
    for number in range(3):
        await original.prompt(id=f"p{number}", text="hello")
    async with next_worker(temporal, settings):
        await original.until(lambda state: state.session.turn_count == 3 and state.status == "idle", turns=0)
        turns = (await original.state()).messages
    order = CopyOrder(
        start=SessionInput(model="offline:"),
        fork=ForkSource(session=original.handle.id, first_run_id=original.handle.first_execution_run_id or "", turn=2),
    )
    fork = await temporal.start_workflow("CopySession", order, id=f"fork-{uuid4()}", task_queue=settings["task_queue"])
    async with doomed_worker(plan_of(temporal, settings, dies_at="store_copy has run")) as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    copy = DrivenSession(temporal, temporal.get_workflow_handle(fork.id), patient=True)
    async with next_worker(temporal, settings):
        await until_copied(copy.handle)
        await copy.until(lambda state: state.session.turn_count == 2, turns=0)
        assert (await copy.state()).messages == turns[:2]
        assert (await original.state()).messages == turns
