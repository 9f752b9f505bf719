"""A session as a task of another one, and the tasks that a session starts itself (TSK-4, TSK-5)."""
