"""Tests for what others add to Turnkeeper: every model provider passes `provider_kit`. None of it needs pytest."""
