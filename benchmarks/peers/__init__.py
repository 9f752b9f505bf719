"""The same work through other libraries, beside ours, in one run (OPS-11): `make bench-peers`."""
