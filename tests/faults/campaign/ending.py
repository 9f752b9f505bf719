"""Reads the final state: transcripts, queues, fates, copies and effects."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.campaign.calls import Calls, Reply
from tests.faults.campaign.evidence import Copy, Effect, SessionEnd
from tests.faults.campaign.settling import Standing
from tests.faults.campaign.watchers import Poller, Watcher
from tests.waiting import until

READ_SECONDS = 60.0
"""Seconds within which a read must be answered: no fault is injected any more."""

CATCH_UP_SECONDS = 30.0
"""Seconds within which a client must have what the session has."""


class NotAnsweredError(Exception):
    """The gateway did not answer a read, although no fault is injected any more."""


async def read_session(
    session: str,
    client: Calls,
    standing: Standing,
    followers: Sequence[Watcher | Poller],
    *,
    prompts: Iterable[str],
) -> SessionEnd:
    """Return what became of a session."""
    try:
        turns, revision = await _transcript(session, client)
        queue = (await _read(client, f"/workflow/{session}/queue")).body
    except NotAnsweredError as error:
        return SessionEnd(session, standing.status, [], settled=None, stalled=standing.stalled, unreadable=str(error))
    fates = {fate["id"]: fate["fate"] for fate in queue["fates"]}
    reasons = {fate["id"]: fate["reason"] for fate in queue["fates"] if fate.get("reason")}
    in_turns = {turn["id"] for turn in turns}
    for prompt_id in dict.fromkeys(prompts):
        if prompt_id not in in_turns and prompt_id not in fates:
            reply = await _fate(client, session, prompt_id)
            if reply is None:
                break
            if reply.get("fate"):
                fates[prompt_id] = reply["fate"]
            if reply.get("reason"):
                reasons[prompt_id] = reply["reason"]
    return SessionEnd(
        session,
        standing.status,
        turns,
        fates,
        reasons,
        waiting=[prompt["id"] for prompt in queue["waiting"]],
        copies=await _copies(followers, revision),
        settled=standing.settled_at,
        stalled=standing.stalled,
    )


def read_effects(file: Path) -> list[Effect]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [Effect(line["tool"], line["key"]) for line in lines]


async def _transcript(session: str, client: Calls) -> tuple[list[dict[str, Any]], int]:
    """Return the whole transcript, oldest first, and the session's revision."""
    page = (await _read(client, f"/workflow/{session}/conversation/full")).body
    turns, revision = page["messages"], page["revision"]
    while page["has_more"]:
        before = {"before": turns[0]["id"]}
        page = (await _read(client, f"/workflow/{session}/conversation/full", before)).body
        turns = page["messages"] + turns
    return turns, revision


async def _fate(client: Calls, session: str, prompt_id: str) -> Any:
    """Return what the gateway says of a prompt: empty where it knows none, None where there is no such route."""
    reply = await client.send("GET", f"/workflow/{session}/queue/{prompt_id}")
    if reply.status == 405 or reply.problem == "not-found":
        return None
    return reply.body if reply.outcome == "ok" else {}


async def _copies(followers: Sequence[Watcher | Poller], revision: int) -> list[Copy]:
    """Return the clients' copies, after the time they need to get everything."""
    with suppress(TimeoutError):
        await until(lambda: all(one.revision >= revision for one in followers), within=CATCH_UP_SECONDS)
    return [one.copy for one in followers]


async def _read(client: Calls, path: str, params: dict[str, Any] | None = None) -> Reply:
    reply: Reply | None = None

    async def is_answered() -> bool:
        nonlocal reply
        reply = await client.send("GET", path, params=params)
        return reply.outcome == "ok"

    try:
        await until(is_answered, within=READ_SECONDS)
    except TimeoutError:
        raise NotAnsweredError(f"GET {path} was not answered for {READ_SECONDS:.0f} s: {reply}") from None
    return reply
