"""Tasks as workflows: starting the tasks of a session, and signalling a task's parent (TSK-5)."""
