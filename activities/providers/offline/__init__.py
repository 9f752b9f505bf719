"""A model without network or key: it reads the conversation, uses tools, and answers by rules."""
