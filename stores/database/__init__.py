"""SQLite and PostgreSQL behind one interface, and their migrations."""

NEWEST = "0001"
"""The last migration in `migrations/versions`."""

OTHER_TABLES = (
    "The store was made by another version of Turnkeeper: delete it, or use another one (settings state_dir and "
    "archive_url)."
)

OPERATION_SECONDS = 5.0
"""Timeout of an operation, with the wait for a slot and migrations."""

MAX_OPERATIONS = 8
"""Maximum concurrent operations of a process; more wait."""
