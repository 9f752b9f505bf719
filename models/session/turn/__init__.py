"""The running turn: the rules that follow from its data, and how it changes in its session."""
