"""Every API there is a provider for, on loopback: what this folder has in a module whose name ends with `_wire`."""

import pkgutil
from collections.abc import Callable
from importlib import import_module

from tests import vendors
from turnkeeper.models.ids import split_model
from turnkeeper.testing.vendor_server import VendorServer

_MODULES = [import_module(f"{vendors.__name__}.{module.name}") for module in pkgutil.iter_modules(vendors.__path__)
            if module.name.endswith("_wire")]  # fmt: skip

_SERVERS = (
    server
    for module in _MODULES
    for server in vars(module).values()
    if isinstance(server, type) and issubclass(server, VendorServer) and server.__module__ == module.__name__
)

WIRES: dict[str, Callable[[], VendorServer]] = dict(
    sorted((split_model(server.model)[0], server) for server in _SERVERS)
)
"""By the name of its provider."""
