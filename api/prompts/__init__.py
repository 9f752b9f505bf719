"""Admitting and sending prompts, and reading their fates."""
