"""What agents add to the command line: `turnkeeper tools`."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.clients.terminal.command_options import exit_with, settings_or_exit
from turnkeeper.features.commands_feature import CommandsFeature

commands = typer.Typer()


@commands.command()
def tools(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with agents.")],
    describe: Annotated[bool, typer.Option("--describe", hidden=True, help="Used by the worker.")] = False,
) -> None:
    """Serve the tools of a file's agents to any MCP client, on stdin and stdout."""
    from turnkeeper.features.agents.agent_file import AgentFileError, load_agents
    from turnkeeper.features.agents.registration import description

    try:
        if describe:
            print(description(load_agents(file), file))
            return
        from turnkeeper.features.agents.tool_process import main

        main(file, max_bytes=settings_or_exit().tool_memory)
    except AgentFileError as error:
        exit_with(error)


class _Agents(CommandsFeature):
    commands = commands


COMMANDS = _Agents()
