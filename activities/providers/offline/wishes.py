"""What a user can want of the offline model. `offline_phrases` finds wishes in a text, `offline_plans` fulfils them."""

from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.activities.providers.offline.scene import Outcome, Scene, Use


@dataclass(frozen=True)
class LookUp:
    """One call, whose result is the answer."""

    use: Use


@dataclass(frozen=True)
class Change:
    """One call that changes something, and whose result is the answer."""

    use: Use


@dataclass(frozen=True)
class LookBack:
    """A question that the conversation itself answers."""

    tell: Callable[[Scene], str]


@dataclass(frozen=True)
class Read:
    """Questions about files; without `paths`, about the file that was read last."""

    paths: tuple[str, ...]
    questions: tuple[Callable[[str, Outcome], str], ...] = ()


@dataclass(frozen=True)
class Remember:
    """A fact to keep, also when the conversation can no longer be seen."""

    fact: str


@dataclass(frozen=True)
class Recall:
    """A question about what was said before; without `topic`, about everything that was to be remembered."""

    topic: str = ""


Wish = LookUp | Change | LookBack | Read | Remember | Recall
"""Something the user wants."""


def changes_something(wish: Wish) -> bool:
    """Tell whether it may change the world: then it waits for what was asked before it, and all after it for it."""
    return isinstance(wish, Change | Remember)
