"""Clients of the gateway: they know what is on the wire, and nothing else of us."""
