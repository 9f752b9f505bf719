"""Tasks as workflows: those that a session starts, and what a session that is a task tells its parent (TSK-5)."""
