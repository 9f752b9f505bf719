"""How the activities of a deletion handle Temporal's errors (API-1)."""

import traceback
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from turnkeeper.activities.archive import DeletionActivities
from turnkeeper.models.errors import DELETION_REFUSED
from turnkeeper.models.session.messages import SessionRuns


class FailingTemporal:
    """Temporal's client, whose server answers every request to delete a run with an error."""

    namespace = "default"

    def __init__(self, status: RPCStatusCode) -> None:
        self.workflow_service = self
        self._status = status

    async def delete_workflow_execution(self, *_request: object, **_options: object) -> None:
        raise RPCError("database is locked", self._status, b"")


async def delete_runs(status: RPCStatusCode) -> SessionRuns:
    environment = ActivityEnvironment()
    environment.info = environment.info.__class__(**{**vars(environment.info), "workflow_id": "s1/delete"})
    client: Any = FailingTemporal(status)
    stores: Any = None
    partials: Any = None
    activities = DeletionActivities(client, stores, partials)
    deleted: SessionRuns = await environment.run(activities.delete_runs, SessionRuns(runs=["r1"]))
    return deleted


async def test_api_1_a_retried_error_is_not_its_own_cause() -> None:
    with pytest.raises(RPCError) as caught:
        await delete_runs(RPCStatusCode.UNAVAILABLE)
    assert caught.value.__cause__ is not caught.value, traceback.format_exception(caught.value)


async def test_api_1_a_deletion_that_temporal_does_not_permit_is_reported() -> None:
    with pytest.raises(ApplicationError) as caught:
        await delete_runs(RPCStatusCode.PERMISSION_DENIED)
    assert caught.value.type == DELETION_REFUSED


async def test_api_1_a_run_that_temporal_no_longer_has_counts_as_deleted() -> None:
    assert await delete_runs(RPCStatusCode.NOT_FOUND) == SessionRuns(runs=[])
