"""A typed client of the gateway."""
