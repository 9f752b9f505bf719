"""Durable AI-agent sessions on Temporal."""
