"""Replaying one run with today's code, and saying what comes of it (OPS-9).

Theory of operation. The SDK replays the run in the worker's sandbox and with the worker's converter, and fails when it
meets an event that no command of today's code fits. That alone is not enough, for two reasons: it tells where it
noticed, which can be behind the first command that differs; and it never notices what the code asks for beyond the
last recorded command, which would be sent with the session's next prompt. So what the workflow asks for is noted while
it is replayed, and laid beside the history (`ops/checks/first_difference.py`). Where that names nothing with certainty,
the SDK's own sentence is passed on.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio import workflow
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turnkeeper.ops.checks.first_difference import Difference, UncertainError, WorkflowTask, first_difference
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession

DEADLOCK = "[TMPRL1101]"
"""What the SDK says of code that did not give way for 2 s: it may be the machine that was busy."""

MOST_CHARS = 300
"""What is told of an exception: its message can quote a whole conversation."""


@dataclass(frozen=True)
class Departure:
    """Where today's code leaves the recorded way. `command` None: no command can be named with certainty."""

    sentence: str
    command: Difference | None = None


def silence() -> None:
    """Have the SDK say nothing in this process: what it makes of a failing replay is told in our own line."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


@contextmanager
def replaying() -> Iterator["Replays"]:
    """Replay with threads that are let go at the end, even by code that never comes back."""
    threads = ThreadPoolExecutor(thread_name_prefix="replay")
    try:
        yield Replays(threads)
    finally:
        threads.shutdown(wait=False)


class Replays:
    """Replays runs, each with a worker of its own: what one leaves behind cannot reach the next."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def departure(self, history: WorkflowHistory) -> Departure | None:
        """Replay a run that has begun; None: today's code does what the history records."""
        noted, failure = await self._replay(history)
        try:
            difference = first_difference(history.events, noted.tasks)
        except UncertainError:
            difference = None
        return _judge(difference, noted, failure)

    async def _replay(self, history: WorkflowHistory) -> tuple["_NotingRunner", Exception | None]:
        noted, failure = await self._replay_once(history)
        if failure and DEADLOCK in str(failure):
            return await self._replay_once(history)
        return noted, failure

    async def _replay_once(self, history: WorkflowHistory) -> tuple["_NotingRunner", Exception | None]:
        noting = _NotingRunner()
        replayer = Replayer(
            workflows=[AgenticAIWorkflow, DeleteSession],
            workflow_task_executor=self._threads,
            workflow_runner=noting,
            data_converter=pydantic_data_converter,
        )
        try:
            return noting, (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
        except RuntimeError as error:
            return noting, error  # the sandbox cannot even load the workflow


@dataclass(frozen=True)
class _Raised:
    """An exception that today's code raised, in the workflow task that began at the event `task`."""

    task: int
    failure: Failure

    def sentence(self) -> str:
        name = self.failure.application_failure_info.type or "an exception"
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', self.failure.stack_trace)
        place = f" at {Path(frames[-1][0]).name}:{frames[-1][1]} {frames[-1][2]}" if frames else ""
        told = f"today's code raises {name}{place} in the workflow task that began at event {self.task}"
        return f"{told}: {short(self.failure.message)}" if self.failure.message else told


class _NotingRunner(WorkflowRunner):
    """Runs the workflow as the worker does, and notes what it asks for."""

    def __init__(self) -> None:
        self._sandbox = SandboxedWorkflowRunner()
        self._commands: dict[int, list[WorkflowCommand]] = {}
        self.raised: _Raised | None = None

    @property
    def tasks(self) -> Sequence[WorkflowTask]:
        return [WorkflowTask(started_at, commands) for started_at, commands in self._commands.items()]

    def prepare_workflow(self, defn: workflow._Definition) -> None:
        self._sandbox.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        self._sandbox.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self._sandbox.create_instance(det)
        activate = instance.activate

        def noting(act: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(act)
            self._note(act, completion)
            return completion

        instance.activate = noting  # type: ignore[method-assign]
        return instance

    def _note(self, activation: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        if any(job.HasField("remove_from_cache") for job in activation.jobs):
            return
        # While it replays, the SDK gives the event that started the workflow task as the history's length. One task
        # can take several activations: what is asked for is sent when the last of them is done.
        self._commands.setdefault(activation.history_length, []).extend(completion.successful.commands)
        if completion.HasField("failed"):
            self.raised = _Raised(activation.history_length, completion.failed.failure)


# ---- judging it


def _judge(difference: Difference | None, noted: _NotingRunner, failure: Exception | None) -> Departure | None:
    """Return what comes first: a command that differs, an exception, or what only the SDK noticed."""
    if noted.raised and not (difference and difference.task < noted.raised.task):
        return Departure(noted.raised.sentence())
    if difference and _agrees(difference, noted, failure):
        return Departure(difference.sentence(), difference)
    return Departure(f"the SDK says: {_sdk_sentence(failure)}") if failure else None


def _agrees(difference: Difference, noted: _NotingRunner, failure: Exception | None) -> bool:
    """Return whether the SDK, if it stopped in the same workflow task, stopped at the same event."""
    stopped_at = re.search(r"HistoryEvent\(id: (\d+)", str(failure))
    if stopped_at is None or difference.task != noted.tasks[-1].started_at:
        return True
    return int(stopped_at[1]) == difference.event


def _sdk_sentence(failure: Exception) -> str:
    r"""Return the sentence in the middle of what the SDK's core hands over, which is written for its developers.

    >>> _sdk_sentence(RuntimeError('4: Failed: Failure { message: "[TMPRL1100] \\"x\\" differs", source: "" }'))
    '[TMPRL1100] "x" differs'
    """
    said = re.search(r'message: "((?:[^"\\]|\\.)*)"', str(failure))
    if said is None:
        return short(f"{failure}: {failure.__cause__}" if failure.__cause__ else str(failure))
    return short(said[1].replace("\\n", " ").replace('\\"', '"'))


def short(text: str) -> str:
    """Return the text on one line, cut at `MOST_CHARS`."""
    told = " ".join(text.split())
    return told if len(told) <= MOST_CHARS else f"{told[:MOST_CHARS]}…"
