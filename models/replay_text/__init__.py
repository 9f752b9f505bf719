"""The replay text: a conversation as text, its grammar, and how turns are written in it."""
