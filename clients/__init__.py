"""Clients of the gateway: they know its wire format and nothing else."""
