"""Storage outside of Temporal: archived turns, large texts, parked prompts, partial output."""
