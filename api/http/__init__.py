"""What every route shares of HTTP: limits, headers, methods, origins."""
