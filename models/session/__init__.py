"""The state of a session and its rules: queue, running turn, tools, approvals, archive, answers to queries."""
