"""What agents add to the command line: `turnkeeper tools` and `init`, and a check for `doctor` and `up`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.clients.terminal.command_options import exit_with, settings_or_exit
from turnkeeper.features.feature import CommandsFeature, Finding
from turnkeeper.models.command_line import command_line
from turnkeeper.models.settings.settings import ENV_PREFIX, Settings, SettingsError

commands = typer.Typer()


@commands.command()
def tools(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with agents.")],
    describe: Annotated[bool, typer.Option("--describe", hidden=True, help="Used by the worker.")] = False,
) -> None:
    """Serve the tools of a file's agents to any MCP client, on stdin and stdout."""
    from turnkeeper.features.agents.agent_file import AgentFileError, description

    try:
        if describe:
            print(description(file))
            return
        from turnkeeper.features.agents.tool_process import main

        main(file, max_bytes=settings_or_exit().tool_memory)
    except AgentFileError as error:
        exit_with(error)


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where; it may not exist yet.")] = Path(),
) -> None:
    """Write a small project: an agent with a tool, and its test. Files that are there stay as they are."""
    from turnkeeper.features.agents.new_project import write_project

    try:
        paths = write_project(folder)
    except OSError as error:
        exit_with(f"{folder}: {error.strerror}.")
    print("\n".join(f"wrote {path}" for path in paths) or "Everything is there already.")
    print(f"Next: {command_line('dev', str(folder / 'weather.py'))}")


class _Agents(CommandsFeature):
    commands = commands

    def __init__(self) -> None:
        self._is_read = False

    async def variables(self, settings: Settings, print_line: Callable[[str], None]) -> Mapping[str, str]:
        """Return the first agent of the file as that of new sessions. A file that is reloaded is waited for."""
        if settings.agents is None:
            return {}
        from turnkeeper.features.agents.agent_file import AgentFileError
        from turnkeeper.features.agents.registration import read_agents, saved

        while True:
            try:
                described = await read_agents(settings.agents)
            except AgentFileError as error:
                if not settings.agents_reload:
                    raise SettingsError(str(error)) from error
                print_line(f"{str(error).removesuffix('.')}. Save it again when it is fixed.")
                await saved(settings.agents)
                continue
            self._is_read = True
            return {} if settings.agent else {f"{ENV_PREFIX}AGENT": next(iter(described.agents))}

    async def check(self, settings: Settings) -> Finding | None:
        """Load the file with agents."""
        if settings.agents is None or self._is_read:
            return None
        from turnkeeper.features.agents.agent_file import AgentFileError
        from turnkeeper.features.agents.registration import read_agents

        try:
            described = await read_agents(settings.agents)
        except AgentFileError as error:
            return Finding("agents", "broken", str(error).removesuffix("."), "correct the file, and start again")
        return Finding("agents", "good", f"{', '.join(described.agents)} from {settings.agents}")


COMMANDS = _Agents()
