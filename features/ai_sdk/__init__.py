"""The routes for the AI SDK's `useChat`."""

from turnkeeper.features.feature import Feature

FEATURE = Feature("ai_sdk")
