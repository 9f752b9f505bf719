"""A session's tools: those that it offers its model, and which of them may run."""
