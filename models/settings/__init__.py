"""Settings of an installation, from code, environment variables and files."""
