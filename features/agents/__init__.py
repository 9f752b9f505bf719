"""Agents and tools of one's own, in code and as versioned data (AGN-1 to AGN-4, AGN-7)."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("agents")
