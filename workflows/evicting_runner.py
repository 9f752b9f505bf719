"""A worker forgets a session whose state in its memory rests on a workflow task that was never completed (SES-12).

Theory of operation. For a query, the SDK may take in events that no completed task has taken. It then goes on from that
state with the session's next tasks: what it has made of these events, with the times of a task that never was, differs
from what every other worker makes of them. Workflow code can't tell, but the gateway can, which sees the history. It
sends a query that fails, and with it the activation: then the SDK forgets the session, and reads it from its history
when it is next asked. Nothing of that enters the history.
"""

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

FORGET_QUERY = "forget_session"

ALONE = "legacy_query"
"""The id of a query that comes without a workflow task. One that comes with a task is no reason to fail the task."""


class EvictingRunner(SandboxedWorkflowRunner):
    """The SDK's own runner, whose workflows are forgotten when they are queried by `FORGET_QUERY`."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance that answers `FORGET_QUERY` by failing."""
        instance = super().create_instance(det)
        activate = instance.activate

        def activate_unless_forgotten(act: WorkflowActivation) -> WorkflowActivationCompletion:
            queries = [job.query_workflow for job in act.jobs if job.HasField("query_workflow")]
            if any(query.query_type == FORGET_QUERY and query.query_id == ALONE for query in queries):
                return _failed(act)
            return activate(act)

        instance.activate = activate_unless_forgotten  # type: ignore[method-assign]
        return instance


def _failed(act: WorkflowActivation) -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.failed.failure.message = "This worker forgets the session and reads its history again."
    completion.failed.failure.application_failure_info.SetInParent()
    return completion
