"""A stack on one machine: the embedded Temporal server, a worker, a gateway, and their logs."""
