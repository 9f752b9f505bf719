"""Tool calls and thoughts in plain text, for models whose API has none."""
