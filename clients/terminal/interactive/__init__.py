"""A conversation at a terminal: keys, input and live output."""
