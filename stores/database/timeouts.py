"""Limits of the database, for those who wait for it elsewhere: the module imports no SQLAlchemy."""

OPERATION_SECONDS = 5.0
"""Timeout of an operation, with the wait for a slot and migrations."""

MAX_OPERATIONS = 8
"""Maximum concurrent operations of a process; more wait."""
