"""Pauses between retries."""

from collections.abc import Iterator


def growing_pauses(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds, endlessly: `first`, then each twice the one before, up to `longest`.

    >>> pauses = growing_pauses(0.5, 3.0)
    >>> [next(pauses) for _ in range(5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)
