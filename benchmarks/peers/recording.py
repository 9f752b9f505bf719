"""The samples of a run, as they are in `samples.json`."""

from dataclasses import field
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

SAMPLES = Path(__file__).with_name("samples.json")


@dataclass
class SystemSamples:
    """What was measured of a system. `seconds` and `stored` have a list for each conversation, with its turns."""

    name: str
    versions: dict[str, str] = field(default_factory=dict)
    milliseconds: list[list[float]] = field(default_factory=list)
    stored: list[list[int]] = field(default_factory=list)
    """Bytes after each turn."""
    rates: list[float] = field(default_factory=list)
    """Turns a second of all concurrent sessions."""
    actions: int | None = None
    """Temporal's actions of a turn; None: it is not on Temporal."""
    events: int | None = None
    slow_actions: int | None = None
    """The same of a turn whose model calls take 10 s, its heartbeats and queries included; nobody watches."""
    runs: int | None = None
    """Temporal's runs of the last conversation: one, and one for each time that it continued as new."""
    failure: str | None = None
    """Why it was not measured, or not to the end."""


@dataclass
class Recording:
    """A run; the first system is ours."""

    machine: str
    tool_calls: int
    sessions: int
    """How many at once for the rates."""
    is_on_disk: bool
    """Whether databases were on the disk, and not in memory."""
    systems: list[SystemSamples]

    @property
    def measured(self) -> list[SystemSamples]:
        """The systems that were measured to the end."""
        return [system for system in self.systems if system.failure is None]


_RECORDING = TypeAdapter(Recording)


def save(recording: Recording, path: Path = SAMPLES) -> None:
    path.write_bytes(_RECORDING.dump_json(recording) + b"\n")


def load(path: Path = SAMPLES) -> Recording:
    return _RECORDING.validate_json(path.read_bytes())
