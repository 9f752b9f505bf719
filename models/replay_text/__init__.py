"""A conversation as text that a model reads: its grammar, and how turns are written in it."""
