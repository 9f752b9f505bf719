"""Models of all vendors behind one interface (`protocol.py`)."""
