"""A conversation handed over to another agent: which part of it, in which form."""
