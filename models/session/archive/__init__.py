"""Which turns have left the session for the archive."""
