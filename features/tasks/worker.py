"""What tasks add to the worker: the activities that prepare what a task is given, and how the offline model condenses.

Offline, a condensed text is the sentences that matter most to the task (CTX-15). A sentence counts by its words in
common with the task, and more if it states something definite: a number, a path, a name in quotes or code, a decision.
The chosen ones stay in their order.
"""

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from turnkeeper.activities.providers.offline.handlers import sentences, shorten
from turnkeeper.activities.worker_feature import WorkerFeature, WorkerParts
from turnkeeper.features.tasks.activities import HandOffActivities, TaskTextActivities
from turnkeeper.features.tasks.histories import rank
from turnkeeper.features.tasks.rules.enrichment import INSTRUCTION, TextToCondense, answer_of, read_request
from turnkeeper.models.transcript.model_call import ModelRequest

_DEFINITE = re.compile(
    r"\d|[\w.-]/[\w.-]|`[^`]+`|[“\"][^”\"]+[”\"]|\b(?:decided|must|never|always|agreed|because|instead|failed|error)\b",
    re.IGNORECASE,
)
DEFINITE_WEIGHT = 0.3
"""What a definite statement counts, as a part of the best match with the task."""


def condensed_of(request: ModelRequest) -> str:
    """Return the condensed texts of `request` as JSON, by their ids; an empty object for another request."""
    condensing = read_request(request.messages[-1].content)
    return answer_of(
        {text.id: _condensed(text, task=condensing.task) for text in condensing.texts} if condensing else {}
    )


def _condensed(text: TextToCondense, *, task: str) -> str:
    lines = [line for line in (sentence.strip() for sentence in sentences(text.text)) if line]
    room, chosen = text.max_chars, set[int]()
    for index in _by_weight(lines, task):
        if len(lines[index]) + 1 <= room:
            chosen.add(index)
            room -= len(lines[index]) + 1
    if not chosen and lines:
        return shorten(lines[_by_weight(lines, task)[0]], text.max_chars)
    return " ".join(lines[index] for index in sorted(chosen))


def _by_weight(lines: Sequence[str], task: str) -> list[int]:
    """Return the indexes of the lines, the most important first; of equal ones, the first."""
    relevance = rank(task, lines)
    weights = [relevance[index] + DEFINITE_WEIGHT * bool(_DEFINITE.search(line)) for index, line in enumerate(lines)]
    return sorted(range(len(lines)), key=lambda index: (-weights[index], index))


class _Tasks(WorkerFeature):
    offline_texts = MappingProxyType({INSTRUCTION: condensed_of})

    def activities(self, parts: WorkerParts) -> Sequence[Callable[..., Any]]:
        texts, stores = TaskTextActivities(parts.texts), parts.stores
        hand_off = HandOffActivities(parts.models, parts.texts, stores.blobs, stores.archive, parts.client)
        return texts.read_large_text, texts.keep_large_result, hand_off.condense_history, hand_off.prepare_sub_task


WORKER = _Tasks()
