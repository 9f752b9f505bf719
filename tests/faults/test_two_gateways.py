"""Two gateways with different settings send to the same sessions, and one is stopped meanwhile: SES-6."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from httpx import AsyncClient, Response, TransportError
from temporalio.client import Client

from tests.api.waits import until_not
from tests.harness import Environment, environment
from tests.processes.environment import SETTINGS, environment_without
from tests.waiting import until
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.settings.settings import CONFIG_VARIABLE
from turnkeeper.ops.local.processes import LOOPBACK, Program, reserved_port
from turnkeeper.ops.local.supervisor import own_command

SMALL = {"max_queued_prompts": 3, "max_queued_bytes": 4_000, "max_state_bytes": 32_000}
WIDE = {"max_queued_prompts": 500}

WRITERS = 8
PROMPTS = 12
"""Prompts of each writer."""

LENGTHS = [5, 1_500, 2_500, 9_000]
"""Characters."""

STOP_SECONDS = 20.0
BEFORE_STOP = WRITERS * PROMPTS // 3
"""Prompts that are accepted before one gateway is stopped."""

ACCEPTABLE = {200, 201, 202, 204, 422, 429}


@dataclass
class Traffic:
    """The prompts that clients sent, and the answers."""

    accepted: dict[str, str] = field(default_factory=dict)
    """The session of each prompt that was answered 202."""
    statuses: Counter[int] = field(default_factory=Counter)

    async def request(self, http: AsyncClient, method: str, path: str, **options: Any) -> Response:
        answer = await http.request(method, path, **options)
        self.statuses[answer.status_code] += 1
        assert answer.headers["content-type"].startswith(("application/json", "application/problem+json")), answer.text
        # A machine whose cores are taken may have no time for Temporal: that is said, and safe to send again.
        assert answer.status_code in {*ACCEPTABLE, 503}, answer.text
        return answer


@asynccontextmanager
async def gateway_process(
    env: Environment, folder: Path, name: str, limits: Mapping[str, int]
) -> AsyncIterator[tuple[Program, AsyncClient]]:
    """Run `turnkeeper api` with these limits for its sessions, beside the environment's worker."""
    with reserved_port() as port:
        settings = {
            "state_dir": str(env.settings.state_dir),
            "task_queue": env.settings.task_queue,
            "api_port": port,
            "model": "offline:",
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        lines += ["[limits]", *(f"{key} = {value}" for key, value in limits.items())]
        config = folder / f"{name}.toml"
        config.write_text("\n".join([*lines, ""]))
        variables = {
            **environment_without(*SETTINGS),
            CONFIG_VARIABLE: str(config),
            "TEMPORAL_ADDRESS": env.client.service_client.config.target_host,
        }
        program = Program(own_command("api"), log=folder / f"{name}.log", env=variables, folder=folder)
        await program.start()
        gateway = Gateway(host=LOOPBACK, port=port)
        try:

            async def is_ready() -> bool:
                assert program.pid is not None, program.last_output()
                return await gateway.status("/readyz") == 200

            await until(is_ready, within=120)
            async with AsyncClient(base_url=gateway.url, timeout=60) as http:
                yield program, http
        finally:
            await program.stop(seconds=STOP_SECONDS)


async def write(
    traffic: Traffic, gateways: list[AsyncClient], sessions: list[str], number: int, has_begun: asyncio.Event
) -> None:
    """Send prompts by both gateways in turn; where one is gone, send the same prompt by the other."""
    for index in range(PROMPTS):
        session = sessions[(number + index) % len(sessions)]
        message_id, length = f"w{number}-{index}", LENGTHS[(number + index // 2) % len(LENGTHS)]
        body = {"message": "x" * length, "id": message_id}
        for http in (gateways[index % 2], gateways[0]):
            try:
                send = partial(traffic.request, http, "POST", f"/workflow/{session}/prompt", json=body)
                answer = await until_not(503, send)
            except TransportError:
                continue  # it was stopped: whether Temporal has the prompt is unknown, so the same id is sent again
            if answer.status_code == 202:
                traffic.accepted[message_id] = session
            break
        if len(traffic.accepted) >= BEFORE_STOP:
            has_begun.set()


async def test_ses_6_each_202_of_two_gateways_becomes_a_turn_if_one_is_stopped(
    temporal: Client, tmp_path: Path
) -> None:
    traffic, has_begun = Traffic(), asyncio.Event()
    async with AsyncExitStack() as running:
        env = await running.enter_async_context(environment(temporal, state_dir=tmp_path / "state"))
        _, wide = await running.enter_async_context(gateway_process(env, tmp_path, "wide", WIDE))
        program, small = await running.enter_async_context(gateway_process(env, tmp_path, "small", SMALL))
        sessions = [f"g-{uuid4()}" for _ in range(4)]
        for session, http in zip(sessions, (wide, small, wide, small), strict=True):
            await traffic.request(http, "POST", "/workflow", json={"id": session})

        async def change_limits() -> None:
            await has_begun.wait()
            await traffic.request(wide, "PATCH", f"/workflow/{sessions[0]}", json={"limits": SMALL})
            assert program.pid is not None
            os.kill(program.pid, signal.SIGTERM)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change_limits())
            for number in range(WRITERS):
                tasks.create_task(write(traffic, [wide, small], sessions, number, has_begun))

        async def fate_of(message_id: str, session: str) -> Any:
            answer = await wide.get(f"/workflow/{session}/queue/{message_id}")
            return answer.json().get("fate") if answer.json().get("fate") != "waiting" else None

        fates = Counter([await until(partial(fate_of, *item)) for item in traffic.accepted.items()])
    assert fates == {"started": len(traffic.accepted)}
    assert len(traffic.accepted) >= BEFORE_STOP
