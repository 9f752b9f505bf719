"""The same approval in six interfaces: AGT-8."""

import json
from pathlib import Path
from typing import Any

from httpx import AsyncClient
from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.clients.terminal.conftest import Chat, chat, run_chat
from tests.features.mcp.client import McpClient, in_own_task, mcp_client
from tests.harness import Environment, asks, says
from turnkeeper.models.transcript.conversation import FileChange
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

__all__ = ["chat"]

ARGUMENTS: dict[str, Any] = {
    "path": "report\u202egpj.exe",
    "content": "ls" + "\n" * 81 + "evil\u3164\U000e0041 ",
    "account": 7960607143101464576,
    "10": 1.0,
    "9": -0.0,
    "```": ["<U+202E>", {"to": None}],
}

TEXT = """\
Tool: file_write
Server: built in
Purpose:
  | Replaces a file.
Effect: changes something; a repeated run changes nothing more
Change:
  It exists:
  @@ -1,1 +1,1 @@
  -old<U+200B>
  +new
Arguments:
  path: "report<U+202E>gpj.exe"
  content: 82 lines
    | ls
    (80 blank lines)
    | evil<U+3164><U+E0041><1 space>
  account: 7960607143101464576
  10: 1.0
  9: -0.0
  "```":
    - "<U+003C>U+202E>"
    -
      to: null"""


async def change_of(invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
    return FileChange(note="It exists:", diff="@@ -1,1 +1,1 @@\n-old\u200b\n+new", sha256="0" * 64)


async def test_agt_8_six_interfaces_show_the_same_text(
    tab: Tab, env: Environment, url: str, chat: Chat, tmp_path: Path
) -> None:
    spec = ToolSpec(name="file_write", description="Replaces a file.", effect="idempotent", built_in=True)
    env.tools.specs, env.tools.preview = [spec], change_of  # type: ignore[method-assign]
    env.vendor.script = [asks(("file_write", ARGUMENTS)), says("Done.")]
    async with in_own_task(mcp_client(url, tasks=True)) as mcp, AsyncClient(base_url=url) as http:
        session, text = await by_mcp(mcp)
        texts = {"MCP": text}
        approvals = (await http.get(f"/workflow/{session}/approvals")).json()["approvals"]
        texts["API"] = approvals[0]["text"]
        texts["AI SDK"] = await by_ai_sdk(http, session)
    texts["Web UI"] = await by_web_ui(env, session)
    await tab.open(session)
    texts["page"] = await tab.tools.get_by_label("What you decide on", exact=True).inner_text()
    async with chat("--session", session, columns=200, rows=50) as terminal:
        await terminal.until("? file_write")
        texts["terminal"] = terminal.text.partition("call 1.1.0\n")[2].partition("\n\n? file_write")[0]
    ended = await run_chat("hello", "--session", session, "--url", url, "--json", cwd=tmp_path)
    final = json.loads(ended.out.splitlines()[-1])["data"]
    texts["one-shot, JSON"] = final["approvals"][0]["text"]
    texts["one-shot"] = ended.err.partition("prompt:\n\n")[2].partition("\nYour prompt is safe.")[0]
    assert texts == dict.fromkeys(texts, TEXT)
    await tab.button("Approve").click()
    await expect(tab.page.locator(".approval")).to_have_count(0)
    await expect(tab.page.locator("#turns")).to_contain_text("Done.")
    assert [(call.args, call.file_sha256) for call in env.tools.calls] == [(ARGUMENTS, "0" * 64)]


async def by_mcp(mcp: McpClient) -> tuple[str, str]:
    """Start a task; return the id of its session, and the text of its elicitation."""
    created = await mcp.create("create_task", description="Write the report.")
    (request,) = (await mcp.until(created.task_id, "input_required"))["inputRequests"].values()
    heading, _, text = request["params"]["message"].partition("\n\n")
    return heading.removeprefix("Approve call 1.1.0 of ").removesuffix("?"), text


async def by_ai_sdk(http: AsyncClient, session: str) -> str:
    stream = (await http.get(f"/api/chat/{session}/stream")).text
    chunks = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    (called,) = [chunk for chunk in chunks if chunk["type"] == "tool-input-available"]
    assert called["input"] == {**ARGUMENTS, "account": "7960607143101464576"}
    assert called["providerMetadata"] == {"turnkeeper": {"integersAsText": ["account"]}}
    (request,) = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
    assert request["approvalDescriptor"]["isWhole"] is True
    return request["approvalDescriptor"]["text"]


async def by_web_ui(env: Environment, session: str) -> str:
    metadata = await env.client.get_workflow_handle(session).query("__temporal_workflow_metadata")
    details = metadata.current_details if hasattr(metadata, "current_details") else metadata["currentDetails"]
    # Fenced by more backticks than it has.
    return details.partition("``````text\n")[2].partition("\n``````")[0]
