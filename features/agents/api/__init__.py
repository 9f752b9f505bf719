"""Agents over HTTP, and what sessions are started as."""
