"""Lists of sessions, and the repair of their index (API-3)."""
