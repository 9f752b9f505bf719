"""Tool servers that the tests run as programs of their own."""
