"""Running it: settings, the embedded server, the command line."""
