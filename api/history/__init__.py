"""Reading turns from both session and archive, and deleting a session."""
