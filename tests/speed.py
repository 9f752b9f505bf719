"""Bounds on computing time that hold on any machine, however busy it is."""

from collections.abc import Callable
from time import process_time

REFERENCE_SECONDS = 0.003
"""CPU time of `_reference_work` on an idle machine of 2026."""


def cpu_seconds(call: Callable[[], object], *, runs: int = 1) -> float:
    """Return the CPU time of `call`, the least of `runs`, as if the machine was fast and idle.

    Beside other work each instruction takes longer, so the same fixed work is measured before and after.
    """
    return min(_cpu_seconds_once(call) for _ in range(runs))


def _cpu_seconds_once(call: Callable[[], object]) -> float:
    before = _measured(_reference_work)
    seconds = _measured(call)
    slowness = max(before, _measured(_reference_work)) / REFERENCE_SECONDS
    return seconds / max(1.0, slowness)


def _measured(call: Callable[[], object]) -> float:
    began = process_time()
    call()
    return process_time() - began


def _reference_work() -> None:
    words: dict[str, int] = {}
    for number in range(20_000):
        word = f"word {number % 97}"
        words[word] = words.get(word, 0) + len(word)
