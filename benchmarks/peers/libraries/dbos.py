"""DBOS with SQLite, in one process: a turn is a workflow, and each model call and tool call is a step.

DBOS has no conversations. The whole conversation is the input of each turn's workflow, so that the turn can be run
again after a crash; between the turns it is in memory only.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS

from benchmarks.peers import work
from benchmarks.peers.process import Ask

PACKAGES = ("dbos", "sqlalchemy")

Messages = list[dict[str, Any]]


@DBOS.step()
async def call_model(conversation: Messages) -> dict[str, Any]:
    """Answer at once."""
    last_prompt = max(place for place, message in enumerate(conversation) if message["role"] == "user")
    if work.is_answer_due(sum(message["role"] == "tool" for message in conversation[last_prompt:])):
        return {"role": "assistant", "content": work.ANSWER}
    call = {"id": f"call-{len(conversation)}", "name": work.TOOL, "arguments": work.ARGUMENTS}
    return {"role": "assistant", "content": work.CALL_TEXT, "tool_call": call}


@DBOS.step()
async def file_read(path: str) -> str:
    return work.RESULT


@DBOS.workflow()
async def turn(conversation: Messages) -> Messages:
    """Return the turn's new messages."""
    new = Messages()
    while True:
        message = await call_model([*conversation, *new])
        new.append(message)
        call = message.get("tool_call")
        if call is None:
            return new
        new.append({"role": "tool", "id": call["id"], "content": await file_read(**call["arguments"])})


@asynccontextmanager
async def running(place: str) -> AsyncIterator[Ask]:
    url = f"sqlite:///{Path(place) / 'database'}"
    DBOS(config={"name": "peer", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    conversations: dict[str, Messages] = {}

    async def ask(session: str, prompt: str) -> str:
        conversation = [*conversations.get(session, []), {"role": "user", "content": prompt}]
        new = await turn(conversation)
        conversations[session] = [*conversation, *new]
        return str(new[-1]["content"])

    try:
        yield ask
    finally:
        DBOS.destroy()
