"""Settings of an installation, from code, environment and files."""
