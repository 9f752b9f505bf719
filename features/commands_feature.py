"""What a feature adds to the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import typer

from turnkeeper.models.settings.settings import Settings


@dataclass(frozen=True)
class Finding:
    """The result of one check. `unknown`: an earlier finding has to be fixed first."""

    subject: str
    state: Literal["good", "broken", "unknown"]
    message: str
    fix: str = ""


class CommandsFeature:
    """The hooks of the command line. Each one adds nothing, unless a feature overrides it.

    Every command loads the module, so what it needs beyond this is imported where it is used.
    """

    commands: typer.Typer | None = None
    """Commands beside those of `cli.py`."""

    async def variables(self, settings: Settings, print_line: Callable[[str], None]) -> Mapping[str, str]:
        """Return environment variables with settings of the gateway that follow from what `turnkeeper up` starts.

        Raises `SettingsError`: nothing can be started.
        """
        return {}

    async def check(self, settings: Settings) -> Finding | None:
        """Return what `turnkeeper doctor` says, and `turnkeeper up` if it is broken; `None`: nothing."""
        return None
