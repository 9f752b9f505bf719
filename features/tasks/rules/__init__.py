"""Handing off a conversation to a task: which part of it, and in which form."""
