"""Which ports to listen on when the wanted ones are busy (OPS-1)."""

import socket

LOOPBACK = "127.0.0.1"


def usable_port(wanted: int, host: str = LOOPBACK) -> int:
    """Return `wanted` where it can be listened on, else a free port; 0 wants any."""
    return wanted if wanted and is_free(wanted, host) else _free_port(host)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Tell whether nobody listens on `port`."""
    try:
        _bind(port, host)
    except OSError:
        return False
    return True


def _free_port(host: str) -> int:
    return _bind(0, host)


def _bind(port: int, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # As the servers themselves do: connections that were closed a moment ago do not make a port busy.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound
