"""Lists of sessions, and the repair of their index (API-1)."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("listing")
