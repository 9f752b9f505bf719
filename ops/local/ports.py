"""Finding free ports and addresses to listen on (OPS-1, OPS-2)."""

import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"

BLOCKED_PORTS = (6665, 6666, 6667, 6668, 6669, 6697, 10080, 6566, 4045, 3659, 1719, 1720, 1723)
"""Ports that no web page can connect to, under any name: the Fetch standard's "bad ports" ("port blocking").

Not among them: those that need a privilege, those that many machines use, such as X11's, and those that Chromium
doesn't block (measured: 4190, 6679).
"""


def free_port(host: str = LOOPBACK) -> int:
    return _bind(0, host)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    try:
        _bind(port, host)
    except OSError:
        return False
    return True


@contextmanager
def reserved_port(preferred: int = 0, host: str = LOOPBACK) -> Iterator[int]:
    """Yield `preferred` if it is free, else any free port, which the system gives to nobody else inside the block.

    Without the reservation, an outgoing connection could take the port before our program listens on it. Only Linux
    lets the program bind it beside the reserving socket; on other systems the port is chosen but not reserved.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, preferred if preferred and is_free(preferred, host) else 0))
        port: int = reservation.getsockname()[1]
        if sys.platform != "linux":
            reservation.close()
        yield port


@contextmanager
def reserved_blocked_port(host: str = LOOPBACK) -> Iterator[int]:
    """Yield a free port of `BLOCKED_PORTS`, else any free one, reserved as `reserved_port` does."""
    for port in BLOCKED_PORTS:
        with socket.socket() as reservation:
            try:
                # Without SO_REUSEADDR: two stacks that start at once never choose the same port.
                reservation.bind((host, port))
            except OSError:
                continue
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform != "linux":
                reservation.close()
            yield port
            return
    with reserved_port(host=host) as port:
        yield port


def random_loopback_address() -> str:
    """Return an address of this machine that other programs don't guess; on other systems than Linux, `LOOPBACK`.

    Only Linux has all of 127/8, which is 16 million addresses.
    """
    if sys.platform != "linux":
        return LOOPBACK
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def _bind(port: int, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As the servers do: connections that have just closed do not make a port busy.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound
