"""HTTP to a vendor: connections, streams, and bounds for what comes back."""
