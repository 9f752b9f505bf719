"""Running the workflow in a process: connection, task slots, eviction."""
