"""What a request to a model is made of, and what becomes of its answer."""
