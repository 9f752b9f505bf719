"""A test's terminal is like a person's, however the test run was started."""

import os
import signal
from pathlib import Path

from tests.clients.terminal.conftest import ROOT, plain_env
from tests.clients.terminal.terminal import terminal_with
from tests.processes.forked import fork

FORKED_BY_A_RUN_THAT_IGNORES_CTRL_C = """
import os, signal
from tests.processes.fork_server import become

signal.signal(signal.SIGINT, signal.SIG_IGN)
_, slave = os.openpty()
request = {"terminal": True, "descriptors": [0, 1, 2], "umask": None, "env": {}, "cwd": "."}
become(request, [slave, os.dup(slave), os.dup(slave)])
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


async def test_a_command_on_a_terminal_receives_ctrl_c_even_if_the_test_run_ignores_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async with terminal_with(["cat"], env=plain_env(), cwd=tmp_path) as terminal:
            terminal.press("c-c")
            assert await terminal.exit_code() == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_forked_command_on_a_terminal_receives_ctrl_c_if_the_test_run_ignores_it() -> None:
    process = await fork("tests.processes.script", FORKED_BY_A_RUN_THAT_IGNORES_CTRL_C, env=os.environ, cwd=ROOT)
    assert await process.wait() == 0
