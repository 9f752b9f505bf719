"""How a prompt is admitted and sent, and what became of it."""
