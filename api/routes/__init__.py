"""The HTTP routes, one function each."""
