"""Finding free ports to listen on (OPS-1)."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"


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


def _bind(port: int, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As the servers do: connections that have just closed do not make a port busy.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound
