"""The Temporal workflows: a session, and the deletion of a session."""
