"""Whether the process is up, and whether it can serve."""

from fastapi import APIRouter

from api import problems
from api.bodies import Health, Readiness
from api.dependencies import SessionsDep, SettingsDep
from api.temporal_calls import call_temporal
from workflows.connection import polling_workers

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health")
async def health() -> Health:
    """Say that the process is up."""
    return Health()


@router.get("/readyz", operation_id="readiness")
async def readiness(sessions: SessionsDep, settings: SettingsDep) -> Readiness:
    """Temporal is reachable and a worker is polling; 503 otherwise, saying which is missing."""
    workers = await call_temporal(polling_workers(sessions.client, settings.task_queue), "")
    if not workers:
        raise problems.ProblemError(503, "no-worker", f"No worker polls the task queue {settings.task_queue!r}.")
    return Readiness(temporal=sessions.client.service_client.config.target_host, workers=len(workers))
