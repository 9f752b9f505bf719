"""What access adds to the command line: `turnkeeper keys`, `turnkeeper audit`, and a check for `doctor` and `up`."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from turnkeeper.clients.terminal.command_options import JsonOption, UrlOption, exit_with, gateway_url
from turnkeeper.features.feature import CommandsFeature, Finding
from turnkeeper.models.command_line import command_line
from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings

NO_VALID_KEY = "callers need a key, and there is none"
HOW_TO_CREATE_KEY = "create one with `{command}` and set it as TURNKEEPER_API_KEY, or log in at the page"

commands = typer.Typer()

keys = typer.Typer(
    name="keys",
    help="Create, list and revoke the keys of the gateway's callers. The setting auth.keys makes the gateway need one.",
    no_args_is_help=True,
)
commands.add_typer(keys)


@keys.command("create")
def create_key(
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="The tenant whose sessions it opens; default: the default tenant.")
    ] = "",
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Who gets it.")] = None,
    role: Annotated[str, typer.Option(metavar="ROLE", help="reader, writer, approver or admin.")] = "writer",
    expires: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="After 12h or 90d, or on a date (2027-01-31); default: never."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. This is the only time that it is shown."""
    from turnkeeper.features.access.keys_command import NewKey
    from turnkeeper.features.access.keys_command import create_key as create

    with _settings_of_keys() as settings:
        new = NewKey.of(tenant=tenant, user=user, role=role, expires=expires)
        text, notes = asyncio.run(create(settings, new, as_json=as_json))
    print(text, flush=True)
    for note in notes:
        print(note, file=sys.stderr)


@keys.command("list")
def list_keys(as_json: JsonOption = False) -> None:
    """List all keys, without their secrets."""
    from turnkeeper.features.access.keys_command import list_keys as listed

    with _settings_of_keys() as settings:
        lines = asyncio.run(listed(settings, as_json=as_json))
    for line in lines:
        print(line)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, as `keys list` has it.")],
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. It is refused within a second, and streams that it opened end within five."""
    from turnkeeper.features.access.keys_command import revoke_key as revoke

    with _settings_of_keys() as settings:
        print(asyncio.run(revoke(settings, key_id, as_json=as_json)))


@contextlib.contextmanager
def _settings_of_keys() -> Iterator[Settings]:
    """Return the settings; an error in the block ends the program."""
    from turnkeeper.features.access.keys_command import KeyOptionError
    from turnkeeper.stores.database.database import StoreUnavailableError

    try:
        yield load_settings()
    except (KeyOptionError, SettingsError, StoreUnavailableError) as error:
        exit_with(error)


@commands.command()
def audit(
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only changes of this session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this user asked for.")] = None,
    action: Annotated[str | None, typer.Option(metavar="ACTION", help="Only this, such as start or approve.")] = None,
    since: Annotated[datetime | None, typer.Option(metavar="TIME", help="Only from this time on, in UTC.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most N changes.")] = 100,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what, newest first, and never what was said. With keys, only admins may."""
    from turnkeeper.clients.terminal.gateway_command import AuditCommand

    moment = since.replace(tzinfo=UTC) if since else None
    command = AuditCommand(url=gateway_url(url), url_option=url, as_json=as_json)
    raise typer.Exit(command.show(session_id=session, user=user, action=action, since=moment, limit=limit))


class _Access(CommandsFeature):
    commands = commands

    async def check(self, settings: Settings) -> Finding | None:
        """Look for a valid key, if callers need one."""
        if not settings.auth.keys:
            return None
        # Imported only here: SQLAlchemy would be a quarter of the memory and of the start of `turnkeeper up`.
        from turnkeeper.features.access.keys_command import lacks_key
        from turnkeeper.stores.database.database import StoreUnavailableError

        try:
            if await lacks_key(settings):
                command = command_line("keys", "create", "--role", "admin")
                return Finding("keys", "broken", NO_VALID_KEY, HOW_TO_CREATE_KEY.format(command=command))
        except (SettingsError, StoreUnavailableError):
            return Finding("keys", "unknown", "the archive can't be read")
        return Finding("keys", "good", "required, and at least one exists")


COMMANDS = _Access()
