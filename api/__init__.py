"""The gateway: it translates HTTP to Temporal and back, and makes no decisions about sessions."""
