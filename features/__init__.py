"""What a session can do without: each feature is one folder with all its layers."""
