"""The database's tables, release by release."""
