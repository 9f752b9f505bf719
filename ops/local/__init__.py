"""A whole stack on one machine: the embedded Temporal server, the processes beside it, their logs."""
