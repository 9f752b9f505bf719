"""Where a prompt is kept and processed."""
