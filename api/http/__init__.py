"""HTTP concerns that all routes share: limits, headers, methods, origins."""
