"""Vendors' errors: what they mean, and how long to wait."""
