"""Replays one run with the current code and describes the result (OPS-9).

Theory of operation. The SDK replays the run in its own sandbox, with the worker's converter, and fails at an event
that no command of the code matches. That is not enough. The SDK may notice only after the first command that differs,
and it never notices commands after the last recorded one, which the session's next prompt would send. So we record the
workflow's commands during the replay and compare them with the history (`ops/checks/first_difference.py`). If that
can't name a command with certainty, we pass on the SDK's own message.
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
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turnkeeper.ops.checks.first_difference import Difference, UncertainError, WorkflowTask, first_difference
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.copy_session import CopySession
from turnkeeper.workflows.delete_session import DeleteSession
from turnkeeper.workflows.hosting.payload_converter import DATA_CONVERTER

DEADLOCK = "[TMPRL1101]"
"""The SDK's code for a workflow that did not yield for 2 s; the cause may be a busy machine."""

MAX_CHARS = 300
"""The longest message of an exception that is shown: it can quote a whole conversation."""


@dataclass(frozen=True)
class Mismatch:
    """How the code differs from the history. `difference` None: no command can be named with certainty."""

    sentence: str
    difference: Difference | None = None


def silence_sdk() -> None:
    """Turn off the SDK's logs in this process: we print our own line for a replay that fails."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


@contextmanager
def run_replayer() -> Iterator["RunReplayer"]:
    """Yield a replayer; its threads are released after the block, even if workflow code never returns."""
    threads = ThreadPoolExecutor(thread_name_prefix="replay")
    try:
        yield RunReplayer(threads)
    finally:
        threads.shutdown(wait=False)


class RunReplayer:
    """Replays runs, each with its own worker, so that no run affects the next."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def find_mismatch(self, history: WorkflowHistory) -> Mismatch | None:
        """Replay a run that has a workflow task; return None if the code does what the history records."""
        runner, failure = await self._replay(history)
        try:
            difference = first_difference(history.events, runner.tasks)
        except UncertainError:
            difference = None
        return _judge(difference, runner, failure)

    async def _replay(self, history: WorkflowHistory) -> tuple["_RecordingRunner", Exception | None]:
        runner, failure = await self._replay_once(history)
        if failure and DEADLOCK in str(failure):
            return await self._replay_once(history)
        return runner, failure

    async def _replay_once(self, history: WorkflowHistory) -> tuple["_RecordingRunner", Exception | None]:
        runner = _RecordingRunner()
        replayer = Replayer(
            workflows=[AgenticAIWorkflow, CopySession, DeleteSession],
            workflow_task_executor=self._threads,
            workflow_runner=runner,
            data_converter=DATA_CONVERTER,
        )
        try:
            return runner, (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
        except RuntimeError as error:
            return runner, error  # the sandbox cannot even load the workflow


@dataclass(frozen=True)
class _RaisedException:
    """An exception that the code raised in the workflow task that started at the event `task`."""

    task: int
    failure: Failure

    def sentence(self) -> str:
        name = self.failure.application_failure_info.type or "an exception"
        frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', self.failure.stack_trace)
        location = f" at {Path(frames[-1][0]).name}:{frames[-1][1]} {frames[-1][2]}" if frames else ""
        sentence = f"today's code raises {name}{location} in the workflow task that began at event {self.task}"
        return f"{sentence}: {shorten(self.failure.message)}" if self.failure.message else sentence


class _RecordingRunner(WorkflowRunner):
    """Runs the workflow as the worker does, and records its commands."""

    def __init__(self) -> None:
        self._sandbox = SandboxedWorkflowRunner()
        self._commands: dict[int, list[WorkflowCommand]] = {}
        self.exception: _RaisedException | None = None

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

        def recording_activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(act)
            self._record(act, completion)
            return completion

        instance.activate = recording_activate  # type: ignore[method-assign]
        return instance

    def _record(self, activation: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        if any(job.HasField("remove_from_cache") for job in activation.jobs):
            return
        # During a replay, `history_length` is the id of the event that started the workflow task. A task can have
        # several activations; their commands are sent together after the last one.
        self._commands.setdefault(activation.history_length, []).extend(completion.successful.commands)
        if completion.HasField("failed"):
            self.exception = _RaisedException(activation.history_length, completion.failed.failure)


# ---- the verdict


def _judge(difference: Difference | None, runner: _RecordingRunner, failure: Exception | None) -> Mismatch | None:
    """Return what comes first: a command that differs, an exception, or what only the SDK noticed."""
    exception = runner.exception
    if exception and not (difference and difference.task < exception.task):
        return Mismatch(exception.sentence())
    if difference and _agrees(difference, runner, failure):
        return Mismatch(difference.sentence(), difference)
    return Mismatch(f"the SDK says: {_sdk_sentence(failure)}") if failure else None


def _agrees(difference: Difference, runner: _RecordingRunner, failure: Exception | None) -> bool:
    """Return whether the SDK stopped at the same event, if it stopped in the same workflow task."""
    stopped_at = re.search(r"HistoryEvent\(id: (\d+)", str(failure))
    if stopped_at is None or difference.task != runner.tasks[-1].started_at:
        return True
    return int(stopped_at[1]) == difference.event


def _sdk_sentence(failure: Exception) -> str:
    r"""Return the sentence inside an error of the SDK's core.

    >>> _sdk_sentence(RuntimeError('4: Failed: Failure { message: "[TMPRL1100] \\"x\\" differs", source: "" }'))
    '[TMPRL1100] "x" differs'
    """
    sentence = re.search(r'message: "((?:[^"\\]|\\.)*)"', str(failure))
    if sentence is None:
        return shorten(f"{failure}: {failure.__cause__}" if failure.__cause__ else str(failure))
    return shorten(sentence[1].replace("\\n", " ").replace('\\"', '"'))


def shorten(text: str) -> str:
    """Return the text on one line, cut at `MAX_CHARS`."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…"
