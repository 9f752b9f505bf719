"""Record the histories of all stories, or of those named: `python -m tests.replay.record [STORY ...]`.

Histories are recorded before a change of the workflow, never after and never by hand: a made-up one lacks the SDK's
own marks and would let a renamed activity pass.
"""

import asyncio
import shutil
import sys
from pathlib import Path

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.harness import DrivenSession, environment
from tests.replay.stories import STORIES
from turnkeeper.models.session.rules import CURRENT_RULES
from turnkeeper.workflows import search_attributes

HISTORIES = Path(__file__).with_name("histories")
ROOT = Path(__file__).parents[2]


async def record(names: list[str]) -> None:
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary,
        data_converter=pydantic_data_converter,
        search_attributes=search_attributes.ALL,
    ) as server:
        for name in names:
            async with environment(server.client) as env:
                await save(name, await STORIES[name](env))


async def save(name: str, session: DrivenSession) -> None:
    """Write every run of the session, oldest first, as `<story>.json`, `<story>.2.json` and so on.

    Each number of rules has its folder: histories of earlier rules stay, since sessions go on by them. So do those of
    `rules_3_flat_state`, which the last release that carried a flat state has recorded, and that of
    `rules_5_without_attachments`.
    """
    folder = HISTORIES / f"rules_{CURRENT_RULES}"
    folder.mkdir(exist_ok=True)
    for old in folder.glob(f"{name}.*json"):
        old.unlink()
    for number, history in enumerate(await session.histories(), start=1):
        suffix = "" if number == 1 else f".{number}"
        # Stack traces of failures tell where the code lay.
        text = history.to_json().replace(str(ROOT), "/turnkeeper")
        (folder / f"{name}{suffix}.json").write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(STORIES)))
