"""What tasks add to the command line: `turnkeeper tasks`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeeper.clients.terminal.command_options import JsonOption, UrlOption, exit_with, gateway_url
from turnkeeper.features.feature import CommandsFeature

if TYPE_CHECKING:
    from turnkeeper.clients.terminal.tasks import TaskCommands

tasks = typer.Typer(
    name="tasks",
    help="Start agents with the context of their task, and follow them. docs/http.md has examples.",
    no_args_is_help=True,
)
commands = typer.Typer()
commands.add_typer(tasks)

TaskIdArgument = Annotated[str, typer.Argument(metavar="TASK_ID", help="The task's id.")]
ParentOption = Annotated[str | None, typer.Option(metavar="ID", help="The session that the task belongs to.")]


@tasks.command("create")
def create_task(
    description: Annotated[str, typer.Argument(metavar="DESCRIPTION", help="What is to be done.")],
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The title in lists.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model, such as openai:gpt-5.")] = None,
    priority: Annotated[
        str | None, typer.Option(metavar="P0..P4", help="P0 is the most urgent; the default is P2.")
    ] = None,
    parent: ParentOption = None,
    inherit: Annotated[bool, typer.Option("--inherit", help="Hand over the conversation of --parent.")] = False,
    context: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Further fields of POST /tasks, such as conversation_history."),
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long one turn may take.")] = None,
    unattended: Annotated[
        bool, typer.Option("--unattended", help="Ask nobody: deny the tools that would need approval.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends, and print only the answer.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a task, and print its id.

    Exit codes: 1 if it was not created or, with --wait, failed; 2 if the gateway can't be reached; 3 if, with --wait, a
    tool call needs approval first.
    """
    from turnkeeper.clients.terminal.tasks import OptionError, task_fields

    options = {
        "title": title,
        "model": model,
        "priority": priority,
        "parent": parent,
        "timeout": timeout,
        "unattended": unattended or None,
    }
    try:
        fields = task_fields(options, context=context, inherit=inherit)
    except OptionError as error:
        exit_with(error)
    raise typer.Exit(_commands(url, as_json).create(description, fields, is_awaited=wait))


@tasks.command("get")
def get_task(
    task_id: TaskIdArgument,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it ends or needs approval, and print only the answer.")
    ] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the status and the answer of a task. With --wait, the exit codes are those of `create`."""
    raise typer.Exit(_commands(url, as_json).get(task_id, is_awaited=wait))


@tasks.command("list")
def list_tasks(
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only working, input_required, completed, failed or cancelled ones."),
    ] = None,
    parent: ParentOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=100, metavar="N", help="At most N; the default is 20.")
    ] = None,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue a list.")] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first."""
    raise typer.Exit(_commands(url, as_json).list(status=status, parent=parent, limit=limit, cursor=cursor))


@tasks.command("message")
def message_task(
    task_id: TaskIdArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The prompt.")],
    mode: Annotated[str, typer.Option(metavar="MODE", help="enqueue, steer or interrupt.")] = "enqueue",
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a task a further prompt."""
    prompt_mode: Any = mode
    raise typer.Exit(_commands(url, as_json).message(task_id, text, mode=prompt_mode))


@tasks.command("cancel")
def cancel_task(
    task_id: TaskIdArgument,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The reason, stored in Temporal's history.")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a task and all tasks below it."""
    raise typer.Exit(_commands(url, as_json).cancel(task_id, reason=reason))


def _commands(url: str | None, as_json: bool) -> "TaskCommands":
    from turnkeeper.clients.terminal.tasks import TaskCommands

    return TaskCommands(url=gateway_url(url), url_option=url, as_json=as_json)


class _Tasks(CommandsFeature):
    commands = commands


COMMANDS = _Tasks()
