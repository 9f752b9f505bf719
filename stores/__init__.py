"""Storage: archived turns, large texts, parked prompts, partial output; and Temporal, which has the sessions."""
