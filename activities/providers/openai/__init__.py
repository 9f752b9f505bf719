"""OpenAI's two APIs: Responses, and Chat Completions, which other vendors offer too."""
