"""The audit."""
