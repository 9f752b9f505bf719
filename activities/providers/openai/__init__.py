"""OpenAI's two APIs, Responses and Chat Completions, the second also as other vendors serve it."""
