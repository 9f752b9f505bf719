"""The services of `docker-compose.yml` without containers: the same settings, at free ports of this machine."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import yaml

from tests.processes.environment import SETTINGS, environment_without
from tests.restart_ports import restart_port
from tests.stores import postgresql
from tests.stores.partials import redis_server
from tests.stores.postgresql import PostgreSQL
from tests.stores.test_compose import COMPOSE, run_job
from tests.waiting import until
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.dev_server import find_binary
from turnkeeper.ops.local.processes import LOOPBACK, Program
from turnkeeper.ops.local.supervisor import own_command
from turnkeeper.stores.temporal import search_attributes

START_SECONDS = 120.0
STOP_SECONDS = 30.0

ARCHIVE_PASSWORD = "a password: @/%"


P = TypeVar("P")


class ServicesError(Exception):
    """A service can't be started, so the day proves nothing."""


@dataclass
class Services:
    """As an asynchronous context manager: all services run inside, and nothing is left after it."""

    folder: Path
    _programs: dict[str, Program] = field(default_factory=dict)
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)
    _numbers: Iterator[int] = field(default_factory=count)
    _postgresql: PostgreSQL = field(init=False)
    _addresses: dict[str, str] = field(init=False)
    gateway: Gateway = field(init=False)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as running:
            self._postgresql = running.enter_context(
                postgresql.running(_required(postgresql.find_programs(), "initdb"))
            )
            run_job(self._postgresql, ARCHIVE_PASSWORD)
            redis = running.enter_context(redis_server.running(_required(redis_server.find_redis(), "redis-server")))
            temporal = f"{LOOPBACK}:{restart_port()}"
            self.gateway = Gateway(host=LOOPBACK, port=restart_port())
            self._addresses = {
                "TEMPORAL_ADDRESS": temporal,
                "TURNKEEPER_ARCHIVE_URL": self._archive_url,
                "TURNKEEPER_REDIS_URL": redis.url,
                "TURNKEEPER_API_PORT": str(self.gateway.port),
                "TURNKEEPER_PUBLIC_URL": self.gateway.url,
                # The containers have folders of their own.
                "TURNKEEPER_STATE_DIR": str(self.folder / "state"),
                "TURNKEEPER_WORKSPACE_ROOT": str(self.folder / "workspace"),
            }
            (self.folder / "workspace").mkdir()
            await self._run(running, "temporal", _temporal_command(temporal, self.folder / "temporal.db"), os.environ)
            for name, command in (("worker", "worker"), ("gateway", "api")):
                await self._run(running, name, own_command(command), self.environment(name))
            await self.until_ready()
            self._running = running.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    @cached_property
    def settings(self) -> Settings:
        """The gateway's settings, to create the first keys with."""
        archive = self._archive_url.replace("@", f":{quote(ARCHIVE_PASSWORD, safe='')}@")
        return Settings(archive_url=archive, state_dir=self.folder / "state")

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables of a service in `docker-compose.yml`, with the addresses and passwords used here."""
        ours = environment_without(*SETTINGS, "PG")
        variables = yaml.safe_load(COMPOSE)["services"][service]["environment"]
        in_file = {name: _without_variables(str(value)) for name, value in variables.items() if value is not None}
        return {**ours, **in_file, **self._addresses, "PGPASSWORD": ARCHIVE_PASSWORD, "NO_COLOR": "1"}

    async def until_ready(self) -> None:
        """Wait until the gateway answers and reaches a worker. Raises `ServicesError`."""

        async def is_ready() -> bool:
            for name, program in self._programs.items():
                if program.pid is None:
                    raise ServicesError(f"{name} ended: {program.last_output()}")
            return await self.gateway.has_worker()

        try:
            await until(is_ready, within=START_SECONDS, max_pause=0.2)
        except TimeoutError:
            output = {name: program.last_output() for name, program in self._programs.items()}
            raise ServicesError(f"the gateway is not ready after {START_SECONDS:.0f} s: {output}") from None

    async def restart(self, name: str, number: signal.Signals) -> None:
        """End the service with a signal, start it again, and wait until all is ready."""
        program = self._programs[name]
        if program.pid:
            os.killpg(program.pid, number)
        await program.wait()
        await program.start()
        await self.until_ready()

    async def run_command(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run one of our own commands with the gateway's settings; return its exit code and output."""
        log = self.folder / "logs" / f"{next(self._numbers)}.log"
        environment = {**self.environment("gateway"), **variables}
        command = Program(own_command(*arguments), log=log, env=environment, folder=self.folder)
        await command.start()
        try:
            code = await command.wait()
        finally:
            await command.stop(seconds=0.0)
        return code, command.log.read_text()

    @property
    def _archive_url(self) -> str:
        in_file = str(yaml.safe_load(COMPOSE)["x-archive"]["TURNKEEPER_ARCHIVE_URL"])
        return in_file.replace("postgresql:5432", f"{postgresql.HOST}:{self._postgresql.port}")

    @property
    def logs(self) -> dict[str, str]:
        return {name: program.log.read_text(errors="replace") for name, program in self._programs.items()}

    async def _run(
        self, running: AsyncExitStack, name: str, command: list[str], environment: Mapping[str, str]
    ) -> None:
        log = self.folder / "logs" / f"{name}.log"
        program = self._programs[name] = Program(command, log=log, env=dict(environment), folder=self.folder)
        running.push_async_callback(program.stop, seconds=STOP_SECONDS)
        await program.start()


def _temporal_command(address: str, database: Path) -> list[str]:
    binary = str(_required(find_binary(database.parent), "temporal"))
    attributes = [f"{key.name}={key.indexed_value_type.name.title()}" for key in search_attributes.ALL]
    options = [option for attribute in attributes for option in ("--search-attribute", attribute)]
    options += [
        "--port",
        address.partition(":")[2],
        "--db-filename",
        str(database),
        "--headless",
        "--log-level",
        "error",
    ]
    return [binary, "server", "start-dev", *options, "--dynamic-config-value", "history.MaxBufferedQueryCount=100"]


def _without_variables(text: str) -> str:
    """Return a value of the file with the defaults of its variables."""
    return re.sub(r"\$\{\w+(?::(-)?([^}]*))?\}", lambda match: match[2] if match[1] else "", text)


def _required(program: P | None, name: str) -> P:
    if program is None:
        raise ServicesError(f"{name} is not installed")
    return program
