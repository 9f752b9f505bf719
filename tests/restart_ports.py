"""Ports of servers that a test restarts, or that are started later than their port is chosen."""

import random
import socket
from contextlib import suppress

from turnkeeper.ops.local.processes import LOOPBACK

FIRST, LAST = 20_000, 32_767
"""Linux assigns ports from 32,768 on: one of those may be another program's while the server is down."""


def restart_port() -> int:
    """Return a port that is free now and outside the range that the system assigns."""
    while True:
        port = random.randint(FIRST, LAST)
        with suppress(OSError), socket.create_server((LOOPBACK, port)):
            return port
