"""The gateway: HTTP to Temporal and back. It translates and never decides."""
