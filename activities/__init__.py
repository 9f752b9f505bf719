"""Activities: model calls, tool calls, summaries, archive. Each docstring says what a second attempt does."""
