"""One feature of the product: its name, what it needs, and its parts for each process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # each process loads only its own parts
    import typer

    from turnkeeper.activities.worker_feature import WorkerFeature
    from turnkeeper.api.services import GatewayFeature
    from turnkeeper.models.session.session import SessionPart
    from turnkeeper.models.settings.settings import Settings
    from turnkeeper.workflows.workflow_part import WorkflowPart


@dataclass(frozen=True)
class Feature:
    """Something that a session can do without, in a folder of its name.

    Its parts are objects in modules of that folder: `GATEWAY` in `gateway.py`, `WORKER` in `worker.py`, `COMMANDS` in
    `commands.py`, and of what it adds to every session, `SESSION_PART` in `session_part.py` and `WORKFLOW_PART` in
    `workflow_part.py`. A feature that adds nothing to one of them has no such module.
    """

    name: str
    needs: tuple[str, ...] = ()
    """Features that it imports."""

    @property
    def gateway(self) -> "GatewayFeature | None":
        part: GatewayFeature | None = self._load("gateway")
        return part

    @property
    def commands(self) -> "CommandsFeature | None":
        part: CommandsFeature | None = self._load("commands")
        return part

    @property
    def worker(self) -> "WorkerFeature | None":
        part: WorkerFeature | None = self._load("worker")
        return part

    @property
    def session_part(self) -> "type[SessionPart] | None":
        part: type[SessionPart] | None = self._load("session_part")
        return part

    @property
    def workflow_part(self) -> "type[WorkflowPart] | None":
        part: type[WorkflowPart] | None = self._load("workflow_part")
        return part

    def load_tables(self) -> None:
        """Define its tables of the database, if it has any, in `METADATA` of `stores/database/tables.py`."""
        if find_spec(module := f"turnkeeper.features.{self.name}.tables"):
            import_module(module)

    def _load(self, part: str) -> Any:
        module = f"turnkeeper.features.{self.name}.{part}"
        return getattr(import_module(module), part.upper()) if find_spec(module) else None


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

    commands: "typer.Typer | None" = None
    """Commands beside those of `cli.py`."""

    async def variables(self, settings: "Settings", print_line: Callable[[str], None]) -> Mapping[str, str]:
        """Return environment variables with settings of the gateway that follow from what `turnkeeper up` starts.

        Raises `SettingsError`: nothing can be started.
        """
        return {}

    async def check(self, settings: "Settings") -> Finding | None:
        """Return what `turnkeeper doctor` says, and `turnkeeper up` if it is broken; `None`: nothing."""
        return None
