"""What was said and done: prompts, steps, tool calls, answers."""
