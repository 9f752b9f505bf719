"""A dictionary with a maximum size, which drops its oldest entries."""

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(OrderedDict[Key, Value]):
    """A dictionary of at most `max_entries`. Setting a key makes it the newest.

    >>> ages = BoundedDict[str, int](max_entries=2)
    >>> ages["Ann"], ages["Bob"] = 40, 50
    >>> ages["Ann"] = 41
    >>> ages["Cid"] = 60
    >>> dict(ages)
    {'Ann': 41, 'Cid': 60}
    """

    def __init__(self, *, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
