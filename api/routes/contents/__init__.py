"""The contents that turns refer to by hash: large texts and attachments."""
