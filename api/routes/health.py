"""Whether the process is up, and whether it can serve."""

import time
from datetime import timedelta

from fastapi import APIRouter
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from api import problems
from api.bodies import Health, Readiness
from api.dependencies import SessionsDep, SettingsDep
from api.temporal_calls import CALL_SECONDS, call_temporal

router = APIRouter(tags=["health"])

POLLER_SECONDS = 70.0
"""A worker's long poll lasts 60 s; one that was not heard of for longer is gone."""


@router.get("/healthz", operation_id="health")
async def health() -> Health:
    """The process is up."""
    return Health()


@router.get("/readyz", operation_id="readiness")
async def readiness(sessions: SessionsDep, settings: SettingsDep) -> Readiness:
    """Temporal is reachable and a worker is polling; 503 otherwise, saying which is missing."""
    request = DescribeTaskQueueRequest(
        namespace=sessions.client.namespace,
        task_queue=TaskQueue(name=settings.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    describing = sessions.client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=CALL_SECONDS))
    described = await call_temporal(describing, "")
    heard_of = [poller.last_access_time.ToSeconds() for poller in described.pollers]
    workers = sum(time.time() - moment < POLLER_SECONDS for moment in heard_of)
    if not workers:
        raise problems.ProblemError(503, "no-worker", f"No worker polls the task queue {settings.task_queue!r}.")
    return Readiness(temporal=sessions.client.service_client.config.target_host, workers=workers)
