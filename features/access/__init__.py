"""Who may do what: keys, single sign-on, limits of a user, and the audit (API-4)."""
