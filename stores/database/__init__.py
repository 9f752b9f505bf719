"""SQLite and PostgreSQL behind one interface, and their migrations."""
