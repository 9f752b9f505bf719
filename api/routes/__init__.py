"""One verb, one function."""
