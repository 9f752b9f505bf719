"""Output of a step that is not finished yet, on its way from worker to gateway."""
