"""The search attributes a session is listed by (SES-17). They are plain text in Temporal: never any content."""

from typing import Literal

from temporalio.common import SearchAttributeKey

CoarseStatus = Literal["open", "awaiting_approval", "ended"]

SESSION_STATUS = SearchAttributeKey.for_keyword("AgentSessionStatus")
USER = SearchAttributeKey.for_keyword("AgentUser")
MODEL = SearchAttributeKey.for_keyword("AgentModel")
TURNS = SearchAttributeKey.for_int("AgentTurns")

ALL = (SESSION_STATUS, USER, MODEL, TURNS)
"""What the start-up code registers; safe to repeat."""
