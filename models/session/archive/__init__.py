"""Moves from a session to the archive."""
