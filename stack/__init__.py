"""How it is run: the embedded Temporal server, the processes beside it, their logs."""
