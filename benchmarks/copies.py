"""How long copies of a session of 2,000 turns take (SES-18): importing it, exporting it, and forking it.

Each turn has a tool call; some have large results and some an image. The gateway runs in its own process.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from statistics import median
from time import perf_counter
from typing import Any

import httpx

from benchmarks.environment import BOUND, bench_environment
from benchmarks.results import Row, within
from turnkeeper.features.copies.document.document import FORMAT, VERSION
from turnkeeper.ops.local.processes import LOOPBACK

TURNS = 2_000
EARLY_TURN = 12
SAMPLES = 5
MAX_SECONDS = 2.0
POLL_SECONDS = 0.02

IMAGES = 20
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 800
LARGE_RESULTS = 100

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


async def copies() -> list[Row]:
    """Measure import, export and forks of a session of 2,000 turns."""
    body = json.dumps(document(TURNS)).encode()
    async with bench_environment(gateways=1) as environment:
        (port,) = environment.gateway_ports
        async with _http(port) as http:
            imports = [await _seconds(partial(import_session, port, body, f"i{number}")) for number in range(SAMPLES)]
            exports = [await _seconds(partial(_export, http)) for _ in range(SAMPLES)]
            early = [await _seconds(partial(_fork, http, EARLY_TURN)) for _ in range(SAMPLES)]
            late = [await _seconds(partial(_fork, http, TURNS)) for _ in range(SAMPLES)]
    size = f"{TURNS:,} turns"
    return [
        within(f"fork of turn {EARLY_TURN} of {TURNS:,}", median(early), MAX_SECONDS, unit="s", digits=3),
        within(f"fork of turn {TURNS:,} of {TURNS:,}", median(late), None, unit="s", digits=3),
        within(f"export of {size}", median(exports), None, unit="s", digits=3),
        within(f"import of {size}", median(imports), None, unit="s", digits=3),
    ]


def _http(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=BOUND)


async def _seconds(call: Callable[[], Awaitable[object]]) -> float:
    started_at = perf_counter()
    await call()
    return perf_counter() - started_at


async def import_session(port: int, body: bytes, session_id: str) -> None:
    """Import a document through the gateway at `port`, and wait until its session is there."""
    headers = {"content-type": "application/json"}
    async with _http(port) as http:
        response = await http.post("/workflow/import", params={"id": session_id}, content=body, headers=headers)
        await _copied(http, response)


async def _export(http: httpx.AsyncClient) -> None:
    response = await http.get("/workflow/i0/export")
    response.raise_for_status()
    assert len(response.json()["turns"]) == TURNS


async def _fork(http: httpx.AsyncClient, turn: int) -> None:
    await _copied(http, await http.post("/workflow/i0/fork", json={"turn": turn}))


async def _copied(http: httpx.AsyncClient, response: httpx.Response) -> None:
    """Wait until the copy is done."""
    while response.raise_for_status().json()["status"] != "done":
        assert response.json()["status"] == "running", response.text
        await asyncio.sleep(POLL_SECONDS)
        response = await http.get(f"/workflow/{response.json()['workflow_id']}/copy")


def document(turns: int, *, has_media: bool = True) -> dict[str, Any]:
    """Return an exported session of n turns; `has_media`: some have large results, and some an image."""
    texts, attachments = dict[str, str](), dict[str, str]()
    return {
        "format": FORMAT,
        "version": VERSION,
        "exported_at": BEGAN.isoformat(),
        "session": {
            "id": "bench",
            "created_at": BEGAN.isoformat(),
            "turn_count": turns,
            "configuration": {"model": "offline:", "system_prompt": "Be brief."},
        },
        "turns": [
            {"number": number, "turn": _turn(number, texts, attachments, has_media)} for number in range(1, turns + 1)
        ],
        "texts": texts,
        "attachments": attachments,
    }


def _turn(number: int, texts: dict[str, str], attachments: dict[str, str], has_media: bool) -> dict[str, Any]:
    at = (BEGAN + timedelta(minutes=number)).isoformat()
    result: dict[str, Any] = {"outcome": "read notes.txt", "content": f"line {number}\n" * 40}
    if has_media and number % (TURNS // LARGE_RESULTS) == 0:
        text = f"line {number} of a large file\n" * 800
        name = sha256(text.encode()).hexdigest()
        texts[name] = text
        result |= {"content": text[:400], "blob": {"hash": name, "chars": len(text), "bytes": len(text)}}
    call = {"id": f"{number}.1.0", "name": "file_read", "args": {"path": "notes.txt"}, "result": result}
    step: dict[str, Any] = {"kind": "model", "timestamp": at, "model": "offline", "usage": {"input_tokens": 900}}
    steps = [
        {**step, "number": 1, "text": "I read it.", "tool_calls": [call], "stop": "tool_calls"},
        {**step, "number": 2, "text": f"It says {number}. " * 20},
    ]
    turn = {
        "id": f"m{number}",
        "timestamp": at,
        "user_message": f"What does the file say in line {number}? " * 5,
        "user_timestamp": at,
        "agent_message": f"It says {number}. " * 20,
        "agent_timestamp": at,
        "reasoning_trajectory": {"steps": steps},
        "tools_used": ["file_read"],
        "usage": {"input_tokens": 1_800, "output_tokens": 90},
        "revision": number * 5,
        "status": "completed",
    }
    if has_media and number % (TURNS // IMAGES) == 0:
        content = IMAGE + str(number).encode()
        name = sha256(content).hexdigest()
        attachments[name] = b64encode(content).decode()
        turn["attachments"] = [{"type": "image", "media_type": "image/png", "hash": name, "bytes": len(content)}]
    return turn
