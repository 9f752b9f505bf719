"""Record the histories of all stories, or of the named ones: `python -m tests.replay.record [STORY ...]`.

Until version 0.1.0 is published, histories are updated when the workflow's commands change; from then on, one set
is kept for each published version. They are never edited: an invented one lacks the SDK's own marks and would let a
renamed activity pass.
"""

import asyncio
import atexit
import gzip
import shutil
import sys
import tempfile
from pathlib import Path

from temporalio.testing import WorkflowEnvironment

from tests.harness import DrivenSession, environment
from tests.replay.stories import STORIES
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

HISTORIES = Path(__file__).with_name("histories")
ROOT = Path(__file__).parents[2]


async def record(names: list[str]) -> None:
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary,
        data_converter=DATA_CONVERTER,
        search_attributes=search_attributes.ALL,
    ) as server:
        for name in names:
            async with environment(server.client) as env:
                await save(name, await STORIES[name](env))


async def save(name: str, session: DrivenSession) -> None:
    """Write every run of the session, oldest first, as `<story>.json.gz`, `<story>.2.json.gz` and so on."""
    # Answered once a worker has completed the first workflow task of the newest run: before, it has nothing to replay.
    await session.handle.query("__temporal_workflow_metadata")
    HISTORIES.mkdir(exist_ok=True)
    for old in HISTORIES.glob(f"{name}.*json.gz"):
        old.unlink()
    for number, history in enumerate(await session.histories(), start=1):
        suffix = "" if number == 1 else f".{number}"
        # Stack traces of failures tell where the code lay.
        text = history.to_json().replace(str(ROOT), "/turnkeeper")
        # Without the time, so that the same history is the same file.
        (HISTORIES / f"{name}{suffix}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def unpacked_histories() -> Path:
    """Return a folder with all recorded histories, as people export them; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in HISTORIES.glob("*.json.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(STORIES)))
