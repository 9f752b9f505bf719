"""Copies of sessions: exports, imports and forks (SES-18)."""
