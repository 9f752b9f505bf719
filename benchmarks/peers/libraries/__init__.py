"""Other libraries, a module each. They run in environments of their own and know nothing of Turnkeeper."""
