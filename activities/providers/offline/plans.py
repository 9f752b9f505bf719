"""How the offline model fulfils a wish: by a plan, replayed at every step of a turn (see `offline` for the theory).

A plan is a generator. It yields the tool calls it needs, is sent what came of them, and returns what to say. It starts
anew at every step and must ask for the same calls again: it may look at the scene and at its outcomes, at nothing else.
"""

from collections.abc import Generator, Iterable

from turnkeeper.activities.providers.offline.answers import LISTED_LINES, shown_of, tell_beginning, tell_result
from turnkeeper.activities.providers.offline.phrases import wishes_in
from turnkeeper.activities.providers.offline.scene import MEMORY, Outcome, Scene, Use, outcome_of, reading, writing
from turnkeeper.activities.providers.offline.text import ended, lines_about, quoted, sentences, short
from turnkeeper.activities.providers.offline.wishes import (
    Change,
    LookBack,
    LookUp,
    Read,
    Recall,
    Remember,
    Wish,
    changes_something,
)

Plan = Generator[list[Use], list[Outcome], str]
"""Yields the uses it needs, is sent their outcomes in the same order, returns what to say."""


def play(wishes: Iterable[Wish], scene: Scene) -> tuple[list[str], list[Use]]:
    """Replay all plans: return what the finished ones say, and the uses that come next."""
    results = _Results(scene)
    said: list[str] = []
    needed: list[Use] = []
    for wish in wishes:
        if changes_something(wish) and needed:
            break
        told, missing = _replay(_plan_of(wish, scene), results)
        said += told
        needed += missing
        if changes_something(wish) and missing:
            break
    return said, needed


class _Results:
    """The results of this turn. Each serves one use, so that a file that is read again is read as it is then."""

    def __init__(self, scene: Scene) -> None:
        self._offered = scene.offered
        self._left = scene.results

    def take(self, use: Use) -> Outcome | None:
        """Return the outcome of `use`; None where the call is still to be made."""
        if use.tool not in self._offered:
            return Outcome(use, f"the tool {use.tool} is not available here", status="error")
        for index, (call, result) in enumerate(self._left):
            if call.name == use.tool and call.args == use.args:
                del self._left[index]
                return outcome_of(use, result)
        return None


def _replay(plan: Plan, results: _Results) -> tuple[list[str], list[Use]]:
    """Lead a plan as far as the results go: to what it says, or to the uses that have no outcome yet."""
    try:
        uses = next(plan)
        while True:
            outcomes = [results.take(use) for use in uses]
            missing = [use for use, outcome in zip(uses, outcomes, strict=True) if outcome is None]
            if missing:
                return [], missing
            uses = plan.send([outcome for outcome in outcomes if outcome is not None])
    except StopIteration as end:
        return [end.value], []


# ---- the plans


def _plan_of(wish: Wish, scene: Scene) -> Plan:
    """Begin the plan that fulfils `wish`."""
    match wish:
        case LookUp(use) | Change(use):
            return _plan_to_use(use)
        case LookBack():
            return _plan_to_look_back(wish, scene)
        case Read():
            return _plan_to_read(wish, scene)
        case Remember(fact):
            return _plan_to_remember(fact)
        case Recall(topic):
            return _plan_to_recall(topic, scene)


def _plan_to_use(use: Use) -> Plan:
    """Make the call and quote its result."""
    [outcome] = yield [use]
    return outcome.failure or tell_result(outcome)


def _plan_to_look_back(wish: LookBack, scene: Scene) -> Plan:
    """Answer without any call."""
    yield from ()
    return wish.tell(scene)


def _plan_to_read(wish: Read, scene: Scene) -> Plan:
    """Read the files anew, all at once, and answer each question about each of them."""
    if wish.paths:
        outcomes = yield [reading(path) for path in wish.paths]
        files = list(zip(wish.paths, outcomes, strict=True))
    else:
        files = scene.files_read[-1:]
    told = [sentence for path, outcome in files for sentence in _answers(wish, path, outcome)]
    return "\n\n".join(told) or "I have read no file in this conversation yet that could answer this. Name one."


def _answers(wish: Read, path: str, outcome: Outcome) -> list[str]:
    if outcome.failure:
        return [outcome.failure]
    return [tell(path, outcome) for tell in wish.questions or (tell_beginning,)]


_FORGETTING = "I know it only as long as I can see this conversation."


def _plan_to_remember(fact: str) -> Plan:
    """Add the fact to the memory file, unless it stands there already; what could not be read is not replaced."""
    line = f"- {fact}"
    [memory] = yield [reading(MEMORY)]
    if memory.failure and not memory.is_absent:
        return f"{memory.failure} {_FORGETTING}"
    if memory.is_cut:
        return f"I was shown only a part of {MEMORY}, so I do not replace it. {_FORGETTING}"
    kept = [] if memory.failure else memory.lines
    if line not in kept:
        [written] = yield [writing(MEMORY, "\n".join([*kept, line, ""]))]
        if written.failure:
            return f"{written.failure} {_FORGETTING}"
    return f"I will remember: {ended(fact)} It is noted in {MEMORY}."


def _plan_to_recall(topic: str, scene: Scene) -> Plan:
    """Answer from the conversation, and from the memory file only if that holds nothing."""
    told = _told_about(topic, scene) if topic else _told_to_remember(scene)
    if told:
        return told
    [memory] = yield [reading(MEMORY)]
    found = [] if memory.failure else lines_about(topic, memory.lines)
    if found:
        return f"{MEMORY} says:\n\n{quoted(found, most=LISTED_LINES)}"
    about = f"about “{short(topic, 80)}”" if topic else "that I was to remember"
    if memory.failure and not memory.is_absent:
        return f"I find nothing {about} in this conversation. {memory.failure}"
    return f"I find nothing {about}, neither in this conversation nor in {shown_of(MEMORY, memory)}."


# ---- what the conversation holds


def _told_about(topic: str, scene: Scene) -> str | None:
    """Quote the newest statement about `topic` of the first source that has one."""
    sources = [
        ("You told me", [fact for text in [*scene.requests, scene.asked] for fact in facts_about(topic, text)]),
        ("The context I was given says", lines_about(topic, sentences(*scene.contexts))),
        ("The summary of our conversation says", lines_about(topic, sentences(*map(_stated, scene.summaries)))),
        ("The summary of our conversation says", lines_about(topic, sentences(*scene.summaries))),
        *((f"{path} says", lines_about(topic, outcome.lines)) for path, outcome in scene.files_read[::-1]),
    ]
    return next((f"{source}: {ended(short(told[-1], 300))}" for source, told in sources if told), None)


def _told_to_remember(scene: Scene) -> str | None:
    facts = [fact for request in scene.requests for fact in _noted(request)]
    return f"You told me to remember:\n\n{quoted(facts, most=LISTED_LINES)}" if facts else None


def _stated(summary: str) -> str:
    """Leave out of a summary what was only asked and answered: a fact is better told in the user's own words."""
    return "\n".join(line for line in summary.split("\n") if not line.startswith(("- asked:", "- answered:")))


def facts_about(topic: str, request: str) -> list[str]:
    """Return what `request` states about `topic`: in passing, and in what it wants remembered; without a topic, all."""
    passing = [line for line in lines_about(topic, sentences(request)) if line[-1] != "?" and not wishes_in(line)]
    return [*passing, *lines_about(topic, _noted(request))]


def _noted(request: str) -> list[str]:
    return [wish.fact for wish in wishes_in(request) if isinstance(wish, Remember)]
