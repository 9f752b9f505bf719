"""What a worker needs to run the workflow: task slots, eviction, the SDK's private parts."""
