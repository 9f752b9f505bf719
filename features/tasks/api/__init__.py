"""The routes of tasks, and what they do."""
