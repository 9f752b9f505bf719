"""Building a request to a model, and processing its answer."""
