"""`turnkeeper audit` lists changes and who made them: API-4, API-6."""

import json
from pathlib import Path

from tests.clients.terminal.conftest import run_command
from turnkeeper.clients.python.gateway import GatewayClient


async def test_api_4_the_audit_is_printed_one_line_per_change_or_as_json(
    url: str, tmp_path: Path, gateway: GatewayClient
) -> None:
    await gateway.start("seen-by-the-command", title="A title")
    for _ in range(2):
        await gateway.prompt("seen-by-the-command", "Hello", message_id="m1")
    listed = await run_command("audit", "--session", "seen-by-the-command", "--url", url, cwd=tmp_path)
    lines = [line.split("  ", 1)[1] for line in listed.out.splitlines()]
    assert lines == [
        "local  prompt seen-by-the-command m1  accepted",
        "local  prompt seen-by-the-command m1  accepted",
        "local  start seen-by-the-command title  accepted",
    ]
    options = ("--action", "prompt", "--limit", "1", "--since", "2026-01-01", "--json", "--url", url)
    as_json = await run_command("audit", "--session", "seen-by-the-command", *options, cwd=tmp_path)
    (line,) = as_json.out.splitlines()
    entry = json.loads(line)
    assert (entry["action"], entry["message_id"], entry["outcome"]) == ("prompt", "m1", "accepted")
    wrong = await run_command("audit", "--action", "read", "--url", url, cwd=tmp_path)
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("action: ")
