"""A conversation at a terminal: keys, lines, live output."""
