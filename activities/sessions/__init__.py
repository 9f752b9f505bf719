"""Activities on whole sessions: copying and deleting them."""
