"""Tasks: sessions started with the context that led to them, and sub-agents (TSK-1 to TSK-5). Needs `listing`."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("tasks", needs=("listing",))
