"""Tasks: sessions that are started with the context that led to them (TSK-1 to TSK-4)."""
