"""Attachments in requests: what a model is shown of them, and what vendors refuse (CTX-16, AGT-4)."""
