"""What a process needs to run the workflow: connection, task slots, eviction."""
