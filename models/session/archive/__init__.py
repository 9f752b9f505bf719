"""What moves from a session to the archive, and when."""
