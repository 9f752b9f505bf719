"""How the gateway speaks to Temporal: calls, queries, listing, watching."""
