"""Which ports to listen on when the wanted ones are busy (OPS-1)."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"


def usable_port(wanted: int, host: str = LOOPBACK) -> int:
    """Return `wanted` where it can be listened on, else a free port; 0 wants any."""
    return wanted if wanted and is_free(wanted, host) else _bind(0, host)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    try:
        _bind(port, host)
    except OSError:
        return False
    return True


@contextmanager
def reserved_port(host: str = LOOPBACK) -> Iterator[int]:
    """Lend a free port that the system gives to nobody else inside the block; whoever is told of it can listen there.

    Otherwise a connection that somebody opens in the meantime may leave from that very port. Only Linux lets a port be
    bound beside a socket that holds it and does not listen; elsewhere it is only chosen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def _bind(port: int, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As the servers themselves do: connections that were closed a moment ago do not make a port busy.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound
