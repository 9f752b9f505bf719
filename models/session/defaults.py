"""The defaults of a session, and the names of its search attributes.

Settings and `turnkeeper up` need only these, so that a process without sessions loads none of their other models.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import to_json

DEFAULT_MODEL = "offline:"

DEFAULT_SYSTEM_PROMPT = (
    "You are a careful assistant working in a conversation that can last for months. "
    "Use the tools you are given to look things up rather than guessing, say plainly what you could not do, "
    "and answer briefly."
)

SYSTEM_PROMPT_BYTES = 100_000
"""Maximum of a system prompt, as JSON, since it is carried from run to run."""


def _carriable(system_prompt: str) -> str:
    # `to_json` raises for a lone surrogate; other checks reject it in short texts.
    if len(system_prompt) * 6 > SYSTEM_PROMPT_BYTES and len(to_json(system_prompt)) > SYSTEM_PROMPT_BYTES:
        raise ValueError(f"may have {SYSTEM_PROMPT_BYTES:,} bytes as JSON")
    return system_prompt


SystemPrompt = Annotated[str, Field(max_length=50_000), AfterValidator(_carriable)]

ATTRIBUTE_TYPES: Mapping[str, str] = {
    "AgentSessionStatus": "Keyword",
    "AgentUser": "Keyword",
    "AgentModel": "Keyword",
    "AgentTurns": "Int",
    "AgentTaskParent": "Keyword",
    "AgentTenant": "Keyword",
}
"""The search attributes of sessions, with their types as Temporal's command line has them (SES-17).

`stores/temporal/search_attributes.py` says what they mean, and has them for the SDK."""
