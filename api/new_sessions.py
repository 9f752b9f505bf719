"""What a session is started with: the settings, what the caller says, and the agent that it is to be (SES-4, AGN-4)."""

from typing import Any

from turnkeeper.api.bodies import ConfigureBody, StartSession, chat_url
from turnkeeper.api.callers import Caller
from turnkeeper.api.problems import invalid
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.agents import AgentChange
from turnkeeper.models.session.messages import Configure, SessionChanges, SessionInput, configured, with_agent
from turnkeeper.models.settings.settings import Settings

PLAIN = "default"
"""The agent that is made of the settings."""

_AGENTS_OWN = ("system_prompt", "tools")
"""Fields that can't be said beside an agent."""


class AgentSource:
    """Finds agents. A feature's service that is one is asked by `NewSessions`."""

    async def change_to(self, label: str, base: SessionInput) -> AgentChange:
        """Return the agent of a label such as `weather` or `weather@2`; what it does not say is as in `base`.

        Raises `ProblemError` if there is none.
        """
        raise NotImplementedError


def plain_input(settings: Settings, workflow_id: WorkflowId, *, user: str | None) -> SessionInput:
    """Return what a session is started with where nothing else is said: the settings, frozen into its history."""
    return SessionInput(
        user=user,
        model=settings.first_model,
        system_prompt=settings.system_prompt,
        limits=settings.limits,
        history=settings.history,
        features=settings.session_features,
        chat_url=chat_url(settings, workflow_id),
    )


def described_input(options: StartSession, base: SessionInput) -> SessionInput:
    """Return `base` with what a caller has described. Raises `RejectedError`."""
    names = SessionChanges.model_fields.keys() & options.model_fields_set
    update: dict[str, Any] = {
        "workspace": options.workspace,
        "unattended": options.unattended,
        "variables": options.variables,
    }
    if options.system_prompt is not None:
        update["system_prompt"] = options.system_prompt
    change = Configure.model_validate({name: getattr(options, name) for name in names})
    return configured(base, change).model_copy(update=update)


class NewSessions:
    """What sessions are started with. Methods raise `ProblemError` and `RejectedError`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.agents: AgentSource | None = None

    async def default_input(
        self, workflow_id: WorkflowId, *, user: str | None, agent: str | None = None
    ) -> SessionInput:
        """Return what a session is started with where only its agent is said, or not even that.

        `user` is the person whose session it is: the one that the request names, otherwise the caller's.
        """
        base = plain_input(self._settings, workflow_id, user=user)
        agent = agent or self._settings.agent or PLAIN
        return base if agent == PLAIN else with_agent(base, await self._agent(agent, base))

    async def requested_input(self, options: StartSession, workflow_id: WorkflowId, caller: Caller) -> SessionInput:
        """Return what a session is started with that a caller has described."""
        base = await self.default_input(workflow_id, user=options.user or caller.user, agent=options.agent)
        for field in _AGENTS_OWN:
            if base.agent is not None and getattr(options, field) is not None:
                raise invalid(field, f"the session has that of the agent {base.agent}; or start it as {PLAIN!r}")
        return described_input(options, base)

    async def change(self, body: ConfigureBody, workflow_id: WorkflowId) -> Configure:
        """Return what a caller has described as a change of a session."""
        fields = {name: getattr(body, name) for name in body.model_fields_set - {"agent"}}
        return Configure(**fields, agent=await self.change_to(body.agent, workflow_id) if body.agent else None)

    async def change_to(self, label: str, workflow_id: WorkflowId) -> AgentChange:
        """Return the agent of a label, for a session that is there. What it does not say is as the settings say."""
        return await self._agent(label, plain_input(self._settings, workflow_id, user=None))

    async def _agent(self, label: str, base: SessionInput) -> AgentChange:
        if self.agents is None:
            raise invalid("agent", "the feature agents is off")
        return await self.agents.change_to(label, base)
