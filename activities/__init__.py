"""What touches the world: model calls, tool calls, summaries, archive; each says what a second run of it does."""
