"""The running turn: its data and rules, and its changes in the session."""
