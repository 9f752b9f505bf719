"""Models behind one interface (`protocol.py`): what is asked is ours, what is sent is the vendor's."""
