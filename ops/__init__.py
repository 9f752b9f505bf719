"""Running Turnkeeper on one machine, checking it, and its demo."""
