"""`turnkeeper doctor` and `turnkeeper replay-check`."""
