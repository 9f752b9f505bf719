"""Copies of sessions: exports, imports and forks (SES-18)."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("copies")
