"""Vendors' APIs on loopback, byte for byte: AGT-11."""
