"""What a hand-off needs beside its rules: storing what a task refers to, and ranking texts (CTX-15, CTX-16).

Texts are ranked by their words: BM25 of SQLite's full-text index FTS5, in memory (docs/decisions/0055). English words
match in all their forms ("deployed" finds "deploying"), accents and case don't count, and scripts without spaces are
compared by pairs of characters. The same texts get the same scores on every machine.
"""

import logging
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from turnkeeper.features.tasks.session.task import PreparedTask
from turnkeeper.features.tasks.session.task_state import TextsToCondense
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.large_texts import Texts
from turnkeeper.stores.blobs import Blobs, attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError

STORE_IS_DOWN = "the store of large texts can't be reached."

_log = logging.getLogger(__name__)


async def store_hand_off(
    blobs: Blobs, prepared: PreparedTask, *, task_id: WorkflowId, parent_id: WorkflowId | None
) -> tuple[PreparedTask, TextsToCondense | None]:
    """Store what the task `task_id` refers to; return the task as it can be started, and its texts to condense.

    Attachments of an inherited conversation are copied from the session `parent_id`. While the store is down,
    attachments are only named, and texts stay cut. A repetition changes nothing.
    """
    try:
        if parent_id and (missing := prepared.missing_hashes):
            prepared = prepared.with_contents(await blobs.get_data(attachments_owner(parent_id), missing))
        if prepared.contents:
            await blobs.put_data(attachments_owner(task_id), prepared.contents.values())
    except StoreUnavailableError as error:
        _log.warning("a task's attachments are only named, since the store is down: %s", error)
        prepared = prepared.without_attachments(STORE_IS_DOWN)
    if prepared.long_texts is None:
        return prepared, None
    texts = Texts()
    blob = texts.add(prepared.long_texts.model_dump_json())
    try:
        await blobs.put(task_id, texts.by_hash.values())
    except StoreUnavailableError as error:
        _log.warning("a task's long texts are cut, not condensed, since the store is down: %s", error)
        return prepared.without_condensing(STORE_IS_DOWN), None
    return prepared, TextsToCondense(blob=blob, count=len(prepared.long_texts.texts))


MAX_QUERY_TERMS = 64
"""Of a longer query only the first different words count."""

MAX_TEXT_CHARS = 20_000
"""Of a longer text only its beginning counts."""

PASSAGE_CHARS = 800
"""A longer text is compared in passages, and its best one counts: as a whole, it would count less for its length."""

SCORE_DIGITS = 3

_WORD = re.compile(r"\w+")
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese and Khmer, Kana, and Chinese characters."""

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a about an and are as at be but by can could do does for from had has have he her his how i if in into is it "
        "its me my no not of on or our please she should so that the their them then there these they this to us was "
        "we were what when where which who why will with would you your",
    )
)
"""Words that say nothing about a text's subject. A rank by rarity alone counts them where they happen to be rare."""


def rank(query: str, texts: Sequence[str]) -> list[float]:
    """Return the relevance of each text to the query: 1 for the best match, 0 for a text with no word of it.

    A word that stands in more than half of the texts counts next to nothing.

    >>> rank("Which port has the database?", ["The database: port 5433.", "Lunch is at noon.", "Tea", "A big port."])
    [1.0, 0.0, 0.0, 0.0]
    """
    words = list(dict.fromkeys(_WORD.findall(_spaced(query).casefold())))
    terms = [word for word in words if word not in _COMMON][:MAX_QUERY_TERMS] or words[:MAX_QUERY_TERMS]
    passages = [(number, passage) for number, text in enumerate(texts) for passage in _passages(text)]
    if not terms or not passages:
        return [0.0] * len(texts)
    scores = [0.0] * len(texts)
    for index, score in _matches(terms, [passage for _, passage in passages]):
        number = passages[index][0]
        scores[number] = max(scores[number], score)
    best = max(scores)
    return [round(score / best, SCORE_DIGITS) if best > 0 else 0.0 for score in scores]


def _matches(terms: Sequence[str], passages: Sequence[str]) -> list[tuple[int, float]]:
    """Return the indexes of the passages with any of the terms, and their scores, over 0."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(text, tokenize = 'porter unicode61', detail = none)"
        )
        connection.executemany("INSERT INTO passages (rowid, text) VALUES (?, ?)", enumerate(map(_spaced, passages)))
        # A quoted term is a string: nothing in it is FTS5's syntax.
        match = " OR ".join(f'"{term}"' for term in terms)
        query = "SELECT rowid, -bm25(passages) FROM passages WHERE passages MATCH ?"
        return connection.execute(query, (match,)).fetchall()


def _passages(text: str) -> list[str]:
    """Return the text in passages that end at a space, where there is one."""
    text, passages = text[:MAX_TEXT_CHARS], list[str]()
    while len(text) > PASSAGE_CHARS:
        end = text.rfind(" ", PASSAGE_CHARS // 2, PASSAGE_CHARS) + 1 or PASSAGE_CHARS
        passages.append(text[:end])
        text = text[end:]
    return [*passages, text]


def _spaced(text: str) -> str:
    """Return the text with each run of a script without spaces as pairs of characters."""
    return text if text.isascii() else _WITHOUT_SPACES.sub(_pairs, text)


def _pairs(match: re.Match[str]) -> str:
    run = match.group()
    return f" {' '.join(run[index : index + 2] for index in range(max(1, len(run) - 1)))} "
