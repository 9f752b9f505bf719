"""Ctrl-C while a command is still loading: API-6."""

import subprocess
import sys

import pytest

INTERRUPTED_AT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from turnkeeper.__main__ import main

module, sys.argv = sys.argv[-1], ["turnkeeper", "chat", "--session", "s", sys.argv[-1]]
main()
"""
"""Runs `turnkeeper chat`, and presses Ctrl-C when it imports the module of the last argument."""

MODULES = [
    "turnkeeper.cli",
    "typer",
    "pydantic",
    "turnkeeper.models.settings.settings",
    "turnkeeper.clients.terminal.gateway_command",
    "turnkeeper.clients.terminal.chat",
    "httpx2",
]


@pytest.mark.parametrize("module", MODULES)
def test_api_6_ctrl_c_while_a_command_loads_ends_it_quietly(module: str) -> None:
    """U21: it printed forty lines of a traceback."""
    command = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, module], capture_output=True, text=True, check=False, timeout=60
    )
    assert (command.returncode, command.stdout, command.stderr) == (130, "", "")
