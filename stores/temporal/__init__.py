"""Temporal itself: which server is used, how to connect to it, and what sessions are registered and listed with."""
