"""Record an export of this release: `python -m tests.features.copies.record`.

Later releases import it in a test. It is recorded once for each version of the document, and never edited.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

from temporalio.testing import WorkflowEnvironment

from tests.api.conftest import gateway
from tests.features.copies.rich_sessions import exported, rich_session
from tests.harness import environment
from turnkeeper.features.copies.document.document import VERSION
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

EXPORTS = Path(__file__).with_name("exports")


async def record() -> None:
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    async with (
        await WorkflowEnvironment.start_local(
            dev_server_existing_path=binary,
            data_converter=DATA_CONVERTER,
            search_attributes=search_attributes.ALL,
        ) as server,
        environment(server.client) as env,
        gateway(server.client, env.task_queue, env.settings.state_dir) as http,
    ):
        session = await rich_session(env)
        document = await exported(http, session.handle.id)
    EXPORTS.mkdir(exist_ok=True)
    (EXPORTS / f"v{VERSION}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
