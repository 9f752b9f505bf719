"""Copies of sessions: the exported document, what an import checks in it, and the state that a copy begins with."""
