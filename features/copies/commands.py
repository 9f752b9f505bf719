"""What copies add to the command line: `turnkeeper export`, `import` and `fork`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeeper.clients.terminal.command_options import JsonOption, UrlOption, check_session_id, gateway_url
from turnkeeper.features.feature import CommandsFeature

if TYPE_CHECKING:
    from turnkeeper.clients.terminal.gateway_command import CopyCommands

commands = typer.Typer()

SessionArgument = Annotated[str, typer.Argument(metavar="ID", callback=check_session_id, help="The session's id.")]
NewIdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", callback=check_session_id, help="The new session's id. Default: a random one."),
]


@commands.command()
def export(
    session: SessionArgument,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for people, which can't be imported.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it. Default: stdout.")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Write a whole session as one JSON document, which `import` and any later version reads."""
    raise typer.Exit(_commands(url).export(session, markdown=markdown, output=output))


@commands.command("import")
def import_session(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` has written; - for stdin.")],
    new_id: NewIdOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a session from an exported one and continue its conversation."""
    raise typer.Exit(_commands(url, as_json).import_file(file, session_id=new_id))


@commands.command()
def fork(
    session: SessionArgument,
    turn: Annotated[
        str | None,
        typer.Option(metavar="TURN", help="The last turn that it has: a number from 1, or an id. Default: the last."),
    ] = None,
    new_id: NewIdOption = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Its title.")] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a session with the turns of another one, up to one of them."""
    raise typer.Exit(_commands(url, as_json).fork(session, turn=turn, new_id=new_id, title=title))


def _commands(url: str | None, as_json: bool = False) -> "CopyCommands":
    from turnkeeper.clients.terminal.gateway_command import CopyCommands

    return CopyCommands(url=gateway_url(url), url_option=url, as_json=as_json)


class _Copies(CommandsFeature):
    commands = commands


COMMANDS = _Copies()
