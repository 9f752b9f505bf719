"""`turnkeeper export`, `import` and `fork`: SES-18, API-6."""

import json
from pathlib import Path

from tests.clients.terminal.conftest import run_command
from turnkeeper.clients.python.gateway import GatewayClient


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_ses_18_a_session_is_exported_imported_and_forked(
    url: str, tmp_path: Path, gateway: GatewayClient
) -> None:
    await gateway.start("copied", title="A title")
    assert await gateway.ask("copied", "Hello", message_id="m1", wait=30)
    at = ("--url", url)
    command = await run_command("export", "copied", "-o", "copied.json", *at, cwd=tmp_path)
    assert (command.code, command.out, command.err) == (0, "", "")
    assert names_in(tmp_path) == ["copied.json"]
    assert json.loads((tmp_path / "copied.json").read_text())["session"]["turn_count"] == 1
    text = await run_command("export", "copied", "--markdown", *at, cwd=tmp_path)
    assert text.out.startswith("# A title\n")

    read = await run_command("import", "copied.json", "--id", "from-file", "--json", *at, cwd=tmp_path)
    receipt = json.loads(read.out)
    assert (receipt["workflow_id"], receipt["status"], receipt["turn_count"]) == ("from-file", "done", 1)
    fork = await run_command("fork", "from-file", "--turn", "1", "--id", "a-fork", *at, cwd=tmp_path)
    assert fork.out.splitlines()[0] == "a-fork"
    assert (await gateway.describe("a-fork")).title == "A title (fork)"

    (tmp_path / "damaged.json").write_text("{}")
    for arguments in (
        ("import", "damaged.json"),
        ("import", "no-such.json"),
        ("export", "no-such-session", "-o", "out.json"),
        ("export", "copied", "-o", "no-such-folder/out.json"),
        ("fork", "copied", "--turn", "7"),
        ("fork", "a b"),
    ):
        failed = await run_command(*arguments, *at, cwd=tmp_path)
        assert (failed.code, failed.out, bool(failed.err)) == (1, "", True), arguments
    assert names_in(tmp_path) == ["copied.json", "damaged.json"]
