"""Recorded histories, one per story, replayed in every test run (SES-19)."""
