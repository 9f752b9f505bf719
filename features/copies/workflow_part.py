"""Copies in the workflow of a session: it answers what a copy of it is made of."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.features.copies.document.copied import SessionSnapshot, snapshot_of
    from turnkeeper.features.copies.document.document import SNAPSHOT
    from turnkeeper.models.errors import RejectedError
    from turnkeeper.models.session.messages import FeatureMessage
    from turnkeeper.workflows.workflow_part import WorkflowPart


class CopiesWorkflow(WorkflowPart):
    """Answers the query with the configuration, the turns in the session and the model's context (SES-18)."""

    name = SNAPSHOT.feature

    def answer(self, question: FeatureMessage) -> SessionSnapshot:
        if question != SNAPSHOT:
            raise RejectedError("invalid", f"kind: {SNAPSHOT.kind!r} is all that copies answer.", field="kind")
        return snapshot_of(self._session)


WORKFLOW_PART = CopiesWorkflow
