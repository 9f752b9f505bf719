"""How it is run, checked and shown."""
