"""Who may do what: keys, single sign-on, limits of a user, and the audit (API-4)."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("access")
