"""Sessions with limits so small that half a dozen turns are enough to move some to the archive."""

from tests.harness import DrivenSession, Environment
from tests.waiting import until
from turnkeeper.models.session.messages import SessionInput

LIMITS = {"max_state_bytes": 40_000, "max_queued_bytes": 4_000, "max_steps": 1_000}
SMALL = SessionInput.model_validate({"limits": LIMITS})


async def chat(session: DrivenSession, numbers: range) -> None:
    """Have one turn after the other; turn `n` of the transcript is called `p<n>`."""
    for number in numbers:
        await session.prompt(id=f"p{number}", text=f"prompt {number} " + "x" * 2_000)
        await session.idle(turns=number)


async def archived_chat(env: Environment, turns: int) -> DrivenSession:
    """Start a session that has moved at least half of its `turns` to the archive."""
    session = await env.start(SMALL)
    await chat(session, range(1, turns + 1))
    await session.until(lambda state: state.archived_count >= turns // 2)
    await at_rest(session)
    return session


async def at_rest(session: DrivenSession) -> None:
    """Return once nothing of the session is on its way anywhere."""

    async def has_no_activity() -> bool:
        return not (await session.handle.describe()).raw_description.pending_activities

    await until(has_no_activity)
    await session.state()
