"""Copying what the stores have of a session, and remembering copies that were not finished."""
