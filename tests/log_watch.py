"""Reads every log line of the tests as the product formats it at log level debug: none has a text or a key (API-4).

A text is what a test's model was asked or answered. `tests/ops/local/test_private_stack.py` does the same with whole
processes; this one covers what all other tests do.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from turnkeeper.ops.local.logs import TextLines, set_levels

MIN_CHARS = 12
"""Shorter texts, such as "go on", may be in a message by chance."""

MAX_CHARS = 200
"""Longer texts are recognised by their first characters."""

KEY = re.compile(r"tk_[a-z0-9]+_[\w-]{20,}|bearer [\w.~+/-]{8,}|eyJ[\w-]{10,}\.eyJ|\bsk-[\w-]{8,}", re.IGNORECASE)
"""Keys of callers and of vendors, and tokens."""


class LogWatch(logging.Handler):
    """Collects the log lines of a test, and the texts that may be in none of them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(TextLines())
        self._lines: list[str] = []
        self._texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))

    def forbid(self, texts: Iterable[str]) -> None:
        """Forbid these texts in the log lines of this test."""
        self._texts.update(text.strip()[:MAX_CHARS] for text in texts if len(text.strip()) >= MIN_CHARS)

    def leaks(self) -> list[str]:
        """Return the lines that have a text or a key."""
        return [line for line in self._lines if KEY.search(line) or any(text in line for text in self._texts)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch a test's logs from debug on; `leaks` has the result."""
        self._lines.clear()
        self._texts.clear()
        root, ours = logging.getLogger(), logging.getLogger("turnkeeper")
        levels = root.level, ours.level
        set_levels(logging.DEBUG)
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(levels[0])
            ours.setLevel(levels[1])


LOG_WATCH = LogWatch()
