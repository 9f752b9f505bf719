"""`turnkeeper chat`."""
