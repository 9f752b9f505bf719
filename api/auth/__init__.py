"""Who sends a request, and what that caller may do: credentials, keys, tokens and roles (API-4)."""
