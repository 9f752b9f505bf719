"""docs/terminal.md: its scripts run, and its table has every command (API-6)."""

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from tests.clients.terminal.conftest import plain_env
from tests.harness import BOUND
from turnkeeper.clients.terminal import texts

PAGE = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text()


async def test_api_6_the_scripts_of_the_terminals_page_run_unchanged(url: str, tmp_path: Path) -> None:
    scripts = re.findall(r"```bash\n(.*?)```", PAGE.partition("## In scripts")[2], re.DOTALL)
    script = "set -e\n" + "".join(scripts).replace(".venv/bin/turnkeeper", "turnkeeper")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        cwd=tmp_path,
        env=plain_env(TURNKEEPER_API_PORT=str(urlsplit(url).port)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 2 * BOUND)
    piped, echoed, final, created, *listed = filter(None, out.decode().splitlines())
    assert (process.returncode, piped, echoed) == (0, "echo: what time is it?", "echo: list files")
    assert json.loads(final)["data"]["answer"] == "echo: what time is it?"
    assert created.startswith("echo: ")
    assert listed != []


def test_api_6_the_terminals_page_has_every_command() -> None:
    rows = "".join(re.findall(r"^\| `/.*$", PAGE, re.MULTILINE))
    expected = {f"/{name} {argument}".rstrip() for name, (argument, _) in texts.COMMANDS.items()}
    assert set(re.findall(r"`(/[^`]*)`", rows)) == expected
