"""Processes of our own code that start in milliseconds."""
