"""The search attributes of sessions, with their types as Temporal's command line has them (SES-17)."""

from collections.abc import Mapping

ATTRIBUTE_TYPES: Mapping[str, str] = {
    "AgentSessionStatus": "Keyword",
    "AgentUser": "Keyword",
    "AgentModel": "Keyword",
    "AgentTurns": "Int",
    "AgentTaskParent": "Keyword",
    "AgentTenant": "Keyword",
}
"""`workflows/search_attributes.py` says what they mean, and has them for the SDK."""
