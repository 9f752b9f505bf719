"""Tool calls and thinking in plain text, for models without an API for them."""
