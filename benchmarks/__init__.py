"""Measurements beside their floors, in one run (OPS-11): `make bench`."""
