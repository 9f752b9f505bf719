"""Prompts: how they are read, their order, and their fates."""
