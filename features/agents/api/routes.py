"""Agents: which there are, their versions, and new versions of those without code (AGN-4)."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path

from turnkeeper.api.bodies import HistoryBody, LimitsBody
from turnkeeper.api.dependencies import CallerDep, ChangesDep, ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.problems import problem
from turnkeeper.api.roles import access
from turnkeeper.features.agents.agent_data import AgentData
from turnkeeper.features.agents.api.directory import AgentDirectory
from turnkeeper.features.agents.versions import AgentVersion
from turnkeeper.models.http_responses import Agent, AgentList, AgentVersionList
from turnkeeper.models.ids import AGENT_NAME_PATTERN, AGENT_PATTERN, DEFAULT_TENANT

router = APIRouter(tags=["agents"])

AgentName = Annotated[str, Path(pattern=rf"^{AGENT_NAME_PATTERN}$", description="The agent's name.")]
AgentLabel = Annotated[
    str, Path(alias="name", pattern=AGENT_PATTERN, description="The agent's name, or name and version: `weather@2`.")
]


class DefineAgent(AgentData):
    """A version of an agent. All that it does not say is as the settings say."""

    limits: LimitsBody | None = None
    history: HistoryBody | None = None


@router.get("/agents", operation_id="list_agents", responses=errors(*ANY))
@access("reader")
async def list_agents(services: ServicesDep, caller: CallerDep) -> AgentList:
    """List the newest version of every agent, by name."""
    directory = services.get(AgentDirectory)
    return AgentList(
        agents=[_response(one) for one in await directory.newest()],
        default=directory.default,
        tool_problems=await directory.tool_problems() if caller.has("admin") else {},
    )


@router.get("/agents/{name}", operation_id="get_agent", responses=errors(*ANY, "unknown-agent"))
@access("reader")
async def get_agent(services: ServicesDep, label: AgentLabel) -> Agent:
    """Return an agent's newest version, or the one that is named, as in `weather@2`."""
    version = await services.get(AgentDirectory).find(label)
    if version is None:
        raise problem("unknown-agent", name=label)
    return _response(version)


@router.get("/agents/{name}/versions", operation_id="list_agent_versions", responses=errors(*ANY, "unknown-agent"))
@access("reader")
async def list_versions(services: ServicesDep, name: AgentName) -> AgentVersionList:
    """List an agent's newest versions, at most 100, the newest first."""
    return AgentVersionList(versions=[_response(one) for one in await services.get(AgentDirectory).all_of(name)])


@router.put("/agents/{name}", operation_id="define_agent", responses=errors(*ANY, "too-large"))
@access("admin")
async def define_agent(services: ServicesDep, changes: ChangesDep, name: AgentName, body: DefineAgent) -> Agent:
    """Make a version of an agent without code, and return it. The same as its newest version makes no other.

    Agents belong to the whole installation: only admins of the default tenant may do this. Sessions keep the version
    that they have.
    """
    async with changes.begin("define_agent", None):
        if changes.caller.tenant != DEFAULT_TENANT:
            raise problem("forbidden", "Only admins of the default tenant may define agents.", caller=changes.caller)
        return _response(await services.get(AgentDirectory).add(name, body, now=datetime.now(UTC)))


def _response(version: AgentVersion) -> Agent:
    data = version.data.model_dump(mode="json", exclude={"tools_digest"})
    return Agent(name=version.name, version=version.version, label=version.label, created_at=version.created_at, **data)
