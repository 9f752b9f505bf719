"""Handing off a conversation to a task: which part, in which form. Sessions that are tasks: `models/session/`."""
