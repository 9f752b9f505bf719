"""Lists of sessions and tasks in the visibility store of Temporal."""
