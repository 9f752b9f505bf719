"""A process with a blocked event loop exits and reports where; one with an idle loop continues (OPS-10)."""

import asyncio
import sys

import pytest

from tests.waiting import BOUND
from turnkeeper.ops.local.process import EXIT_CODE, run_fast

SECONDS = 0.5

PROGRAM = f"""
import asyncio
from turnkeeper.ops.local.process import loop_watchdog, run_fast

def never_returns():
    while True:
        pass

async def idle():
    has_passed = asyncio.Event()
    asyncio.get_running_loop().call_later({2 * SECONDS}, has_passed.set)
    await has_passed.wait()

async def main():
    with loop_watchdog({SECONDS}):
        {{call}}

run_fast(main())
"""


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("never_returns()", EXIT_CODE, "The event loop stood still for 0.5 s, so the process ends."),
        ("await idle()", 0, ""),
    ],
)
async def test_ops_10_a_process_with_a_blocked_event_loop_exits_and_an_idle_one_continues(
    call: str, code: int, message: str
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM.format(call=call), stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(program.communicate(), BOUND)
    assert program.returncode == code
    assert stderr.decode().startswith(message)
    assert ("in never_returns" in stderr.decode()) == bool(message)


@pytest.mark.parametrize(("is_installed", "package"), [(True, "uvloop"), (False, "asyncio")])
def test_ops_8_a_worker_runs_on_uvloop_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool, package: str
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loops = list[str]()

    async def main() -> None:
        loops.append(type(asyncio.get_running_loop()).__module__)

    run_fast(main())
    assert [name.partition(".")[0] for name in loops] == [package]
