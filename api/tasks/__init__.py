"""Tasks: sessions that were started with what led to them, by their own verbs (TSK-1 to TSK-4)."""
