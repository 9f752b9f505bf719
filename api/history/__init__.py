"""The transcript over session and archive, and its deletion."""
