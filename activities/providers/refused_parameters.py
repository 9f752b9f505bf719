"""What of a request a model turned out not to take, and is spared from then on (AGT-4).

Models differ in the optional parameters they take, and endpoints that speak the same API differ even more. No list of
models stays right, and no table knows a name it has not seen. So requests ask for everything that is good to have, and
the endpoint's own word decides: what it refuses by name is left out, and the changed request is sent at once. That is
no retry, since a refused request was not begun, and the same one is never sent twice. A worker remembers it for as long
as it runs; it costs one refused request for each parameter and model.
"""

import re
from collections import defaultdict
from collections.abc import Collection

from activities.providers.protocol import ModelError


class RefusedParameters:
    """What each model was found to refuse."""

    def __init__(self) -> None:
        """Begin by supposing that everything is taken."""
        self._refused: defaultdict[str, set[str]] = defaultdict(set)

    def of(self, model: str) -> frozenset[str]:
        """Return the names of what is to be left out of requests to `model`."""
        return frozenset(self._refused[model])

    def learn(self, model: str, error: ModelError, *, optional: Collection[str]) -> bool:
        """Take note if `error` blames what is `optional`; tell whether there is a request without it to be sent.

        >>> refused = RefusedParameters()
        >>> error = ModelError("bad_request", "Unsupported parameter: 'stream_options'")
        >>> [refused.learn("m", error, optional=["stream_options"]) for _ in range(2)], refused.of("m")
        ([True, False], frozenset({'stream_options'}))
        """
        if error.error_type != "bad_request":
            return False
        # The longest first: a model may take `reasoning`, and refuse but `reasoning.summary`.
        candidates = sorted(set(optional) - self._refused[model], key=lambda name: (-len(name), name))
        blamed = next((name for name in candidates if _blames(error, name)), None)
        if blamed is None:
            return False
        self._refused[model].add(blamed)
        return True


def _blames(error: ModelError, name: str) -> bool:
    if error.parameter:
        # `reasoning.summary`, `include[0]`, `messages[2].reasoning_content`
        return re.search(rf"(?:^|[.\]]){re.escape(name)}(?!\w)", error.parameter) is not None
    # Without a name of its own the sentence counts, for names that are no words of English.
    return "_" in name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.message) is not None
