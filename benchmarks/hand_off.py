"""The worst-case time and tokens of handing a conversation to a task (TSK-7)."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter

from benchmarks.results import Row
from turnkeeper.features.tasks.rules.enrichment import BARE_PROMPT_CHARS, PROMPT_TOKENS, RULE
from turnkeeper.features.tasks.rules.hand_off import validate_conversation_history
from turnkeeper.features.tasks.session.task import CreateTask, prepare_task
from turnkeeper.models.settings.history_policy import PRESETS
from turnkeeper.models.texts import estimate_tokens

MESSAGES = 50
MAX_MS = 10
RUNS = 100
NOW = "2025-10-29T13:20:15.123456+02:00"

LONGEST = {"keep_user": ("user", 200_000), "keep_assistant": ("assistant", 16_384)}
"""The role whose messages a preset keeps, and the longest message; for `keep_user`, as long as a request."""

TEXTS = {"words": "word ", "lines": "a\n", "rules": f"{RULE}\n", "emoji": "\N{PARTY POPPER}"}


async def hand_off() -> list[Row]:
    """Measure the time to validate 50 long messages, and the tokens of the largest prompts made of them."""
    return [row for preset in PRESETS for row in (_time(preset), _tokens(preset))]


def _time(preset: str) -> Row:
    slowest = max(_milliseconds(preset, _history(preset, text)) for text in TEXTS.values())
    return _row(
        f"{MESSAGES} messages validated and truncated, {preset}",
        f"{slowest:.1f} ms",
        f"≤ {MAX_MS} ms",
        slowest <= MAX_MS,
    )


def _milliseconds(preset: str, history: list[dict[str, str]]) -> float:
    def once() -> float:
        started_at = perf_counter()
        validate_conversation_history(history, preset, NOW)
        return perf_counter() - started_at

    return median(once() for _ in range(RUNS)) * 1_000


def _tokens(preset: str) -> Row:
    tokens = max(_prompt_tokens(preset))
    what = f"tokens of an enriched prompt, {preset}"
    return _row(what, f"{tokens:,}", f"< {PROMPT_TOKENS:,}", tokens < PROMPT_TOKENS)


def _row(what: str, measured: str, goal: str, reached: bool) -> Row:
    return Row(what, measured, floor="", ratio="", goal=goal, reached=reached)


def _prompt_tokens(preset: str) -> Iterator[int]:
    for text in TEXTS.values():
        task = CreateTask.model_validate(
            {
                "description": "x" * BARE_PROMPT_CHARS,
                "conversation_history": _history(preset, text),
                "history_policy": preset,
            }
        )
        yield estimate_tokens([{"content": prepare_task(task, now=NOW).prompt}])


def _history(preset: str, text: str) -> list[dict[str, str]]:
    role, chars = LONGEST[preset]
    content = (text * (chars // len(text) + 1))[: chars - 1] + "."
    return [{"role": role, "content": content, "timestamp": NOW}] * MESSAGES
