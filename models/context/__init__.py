"""The model's view of a conversation: pure rules (CTX-1 to CTX-8). They never change the transcript."""
