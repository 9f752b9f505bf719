"""Everything a campaign sent, received and did. Times are in seconds since its start."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["ok", "failed", "unknown"]
"""`failed`: it was refused, or never reached the gateway. `unknown`: no answer came, or a 5xx; either may be true."""

Mode = Literal["enqueue", "interrupt", "steer"]


@dataclass(frozen=True)
class Attempt:
    """One sending of a prompt; the same id may be sent several times."""

    session: str
    id: str
    text: str
    asked_at: float
    answered_at: float
    outcome: Outcome
    mode: Mode = "enqueue"
    client: str = ""
    status: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Action:
    """A cancellation or a withdrawal. `message_id` is the prompt it names."""

    session: str
    kind: Literal["cancel", "withdraw"]
    asked_at: float
    outcome: Outcome
    message_id: str
    status: int | None = None


@dataclass(frozen=True)
class UntypedError:
    """An answer with a 5xx status that is no 503 or 504 problem, or one that can't be read."""

    request: str
    status: int
    at: float
    body: str


@dataclass(frozen=True)
class Fault:
    """A fault that struck. `recovered`: seconds until the next prompt was answered, where that was waited for.

    `probed` and no `recovered`: it was not answered within the bound.
    """

    kind: str
    began: float
    ended: float
    probed: bool = False
    recovered: float | None = None
    remark: str = ""


@dataclass(frozen=True)
class Effect:
    """A tool that ran, as it recorded itself. `key` is the idempotency key it was called with."""

    tool: str
    key: str


@dataclass(frozen=True)
class Copy:
    """A client's final copy. `problems`: events it received that contradict SES-12 or AGT-5.

    `answers_shown`: how many answers it was shown some text of while they were written.
    """

    name: str
    turns: list[dict[str, Any]]
    resets: int = 0
    problems: list[str] = field(default_factory=list)
    answers_shown: int = 0


@dataclass(frozen=True)
class SessionEnd:
    """The final state of a session, as the gateway reports it.

    `turns` is the whole transcript, oldest first; `fates` has, by prompt id, what became of prompts, as far as the
    gateway says it, and `reasons` why, where it gives one; `waiting` are the ids still in the queue. `settled` is how
    long after the last fault it was idle; None: it never was. `unreadable`: why there is nothing of all this.
    """

    session: str
    status: str
    turns: list[dict[str, Any]]
    fates: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    settled: float | None = 0.0
    stalled: float | None = None
    """The longest time without any progress although work was waiting, where it was over the bound."""
    unreadable: str | None = None


@dataclass(frozen=True)
class Replays:
    """The result of replaying the histories. `departures`: a sentence for each run that differs or can't be read."""

    runs: int = 0
    sessions: int = 0
    departures: list[str] = field(default_factory=list)


@dataclass
class Evidence:
    """All that the checker judges."""

    attempts: list[Attempt] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    untyped_errors: list[UntypedError] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    sessions: list[SessionEnd] = field(default_factory=list)
    replays: Replays = field(default_factory=Replays)
    second_attempts: list[float] = field(default_factory=list)
    """For activities of a killed worker: seconds from the kill until another attempt started."""
    crashes: list[str] = field(default_factory=list)
    """Processes that a signal ended which was not ours."""


class Log:
    """Evidence while it is collected: everything is also a line of JSON in a file, as it happens."""

    def __init__(self, file: Path) -> None:
        self.evidence = Evidence()
        self._began = time.monotonic()
        self.began_at = time.time()
        """In seconds since 1970, to compare with the clocks of others on this machine."""
        self._lines = file.open("a", encoding="utf-8")

    def now(self) -> float:
        return round(time.monotonic() - self._began, 4)

    def add(self, event: Attempt | Action | Fault | UntypedError) -> None:
        match event:
            case Attempt():
                self.evidence.attempts.append(event)
            case Action():
                self.evidence.actions.append(event)
            case Fault():
                self.evidence.faults.append(event)
            case UntypedError():
                self.evidence.untyped_errors.append(event)
        self.note(type(event).__name__, **asdict(event))

    def note(self, event: str, /, **fields: Any) -> None:
        """Write a line that the checker does not need."""
        self._lines.write(json.dumps({"event": event, "written": self.now(), **fields}) + "\n")
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
