"""The exported document is public and stable, and a damaged one is refused with what is wrong (SES-18)."""

import json
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from turnkeeper.features.copies.document.copied import CopiedTurns, context_through, copy_with_new_view
from turnkeeper.features.copies.document.document import ExportedTurn
from turnkeeper.features.copies.document.reading import check_document, copy_of_document, count_values, read_document
from turnkeeper.features.copies.exporting import markdown_turn
from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.model_view import ViewState
from turnkeeper.models.context.summary import Summary
from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ConversationMessage

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((ROOT / "tests/features/copies/exports/v1.json").read_text())
"""An export that the first release which could export has made."""


MAX_VALUES = 1_000_000

JSON = st.recursive(
    st.none() | st.integers() | st.text('a,[{"\\', max_size=8),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text('b:,"\\', max_size=4), values, max_size=4),
    max_leaves=20,
)


def values_in(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, parts))


def complaint_about(document: Any) -> RejectedError | None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    try:
        read = read_document(body, max_values=MAX_VALUES)
        check_document(read)
        copy_of_document(read, SessionInput(), now=datetime.now(UTC))
    except RejectedError as error:
        return error
    return None


def test_ses_18_the_recorded_export_is_read() -> None:
    assert complaint_about(RECORDED) is None


Damage = Callable[[dict[str, Any]], object]


def other(path: str, value: object) -> Damage:
    """Return what replaces a value of the document; `path` has names and indexes."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]

    def damage(document: dict[str, Any]) -> None:
        holder: Any = document
        for part in parents:
            holder = holder[part]
        holder[last] = value

    return damage


def lose(document: dict[str, Any], text: str, *, said_bytes: int) -> None:
    """Turn a text into one that the original had lost, whose reference says this size."""
    del document["texts"][text]
    document["missing"].append(text)
    document["turns"][1]["turn"]["agent_message_blob"]["bytes"] = said_bytes


TEXT = next(
    one["turn"]["agent_message_blob"]["hash"] for one in RECORDED["turns"] if "agent_message_blob" in one["turn"]
)
PICTURE = next(iter(RECORDED["attachments"]))
SECOND_STEPS = "turns.0.turn.reasoning_trajectory.steps"
ENTRY = next(index for index, ref in enumerate(RECORDED["context"]["state"]["view"]["entries"]) if "messages" in ref)

ENTRIES = RECORDED["context"]["state"]["view"]["entries"]
PLAIN = max(index for index, ref in enumerate(ENTRIES) if "messages" not in ref)

DAMAGES: list[tuple[Damage, str, str]] = [
    (other("format", "other.session"), "format", "turnkeeper.session"),
    (other("version", 2), "version", "later version"),
    (other("version", "1"), "version", ""),
    (other("surprise", 1), "surprise", "unknown"),
    (other("session.configuration.limits", {"max_steps": 0}), "session.configuration.limits.max_steps", "at least 1"),
    (other("session.configuration.user", "<b>"), "session.configuration.user", ""),
    (other("session.turn_count", 11), "turns", "turn_count"),
    (other("turns.3.number", 5), "turns[3].number", "must be 4"),
    (lambda document: document["turns"].pop(2), "turns", "turn_count"),
    (other("turns.3.turn.id", "a b"), "turns[3].turn.id", "valid id"),
    (other("turns.3.turn.id", RECORDED["turns"][1]["turn"]["id"]), "turns[3].turn.id", "turns[1] too"),
    (other("turns.3.turn.agent_message", None), "turns[3].turn", "has not ended"),
    (other("turns.3.turn.revision", 0), "turns[3].turn.revision", "less than"),
    (other("turns.11.turn.revision", 2**31), "turns[11].turn.revision", "2,147,483,648"),
    (other("turns.3.turn.steps_omitted", 2), "turns[3].turn.steps_omitted", "must be 0"),
    (other("turns.3.archived_steps", 9), "turns[3].archived_steps", "steps"),
    (other("turns.3.turn.timestamp", "yesterday"), "turns[3].turn.timestamp", "date and time"),
    (other("turns.3.turn.user_message", "x" * 1_100_000), "turns[3].turn", "bytes of JSON"),
    (other(f"{SECOND_STEPS}.0.tool_calls.0.result", None), "turns[0].turn.reasoning_trajectory.steps[0]", "result"),
    (other(f"texts.{TEXT}", "another text"), f"texts.{TEXT}", "hash"),
    (lambda document: document["texts"].pop(TEXT), "turns", "neither in texts"),
    (other("turns.1.turn.agent_message_blob.bytes", 10**20), "turns[1].turn", "characters or bytes"),
    (lambda document: lose(document, TEXT, said_bytes=10**20), "turns[1].turn", "size that no text can have"),
    (other(f"{SECOND_STEPS}.0.text", 7), "turns[0].turn.reasoning_trajectory.steps[0].text", "a string"),
    (other(f"attachments.{PICTURE}", "bm8="), f"attachments.{PICTURE}", "hash"),
    (other(f"attachments.{PICTURE}", "???"), f"attachments.{PICTURE}", "base64"),
    (lambda document: document["attachments"].pop(PICTURE), "turns[0].turn", "neither in attachments"),
    (other("turns.0.turn.attachments.0.bytes", 7), "turns[0].turn", "number of bytes"),
    (other("turns.0.turn.attachments.0.url", "file:///etc"), "turns[0].turn.attachments[0].data", "exactly one"),
    (other("turns.3.turn.usage", {"input_tokens": -1}), "turns[3].turn.usage.input_tokens", "0 to"),
    (other("turns.3.turn.usage", {"cost": 1e300}), "turns[3].turn.usage.cost", "0 to"),
    (other("context.archived_turns", 12), "context.archived_turns", "may be 11"),
    (other("context.state.view.entries.0.number", 99), "context.state.view.entries[0]", "the document has 12"),
    (
        other("context.state.view.summary", {"text": "x", "turns": [[1, 13]]}),
        "context.state.view.summary.turns",
        "is of turn 13",
    ),
    (other("context.state.cut", {"1": -1}), "context.state.cut.1", "0 to"),
    (
        lambda document: document["context"]["state"]["view"]["entries"].reverse(),
        "context.state.view.entries",
        "in the order",
    ),
    (
        lambda document: document["context"]["state"]["view"]["entries"].append(
            document["context"]["state"]["view"]["entries"][-1]
        ),
        "context.state.view.entries",
        "each there once",
    ),
    (other("context.state.view.segment", -1), "context.state.view.segment", "from 1"),
    (other("context.state.evicted_since", -1), "context.state.evicted_since", "0 to"),
    (
        other("context.state.limit", {"model": "offline:", "tokens": -1, "config": {}}),
        "context.state.limit.tokens",
        "0 to",
    ),
    (other(f"context.state.view.entries.{PLAIN}.step", 99), f"context.state.view.entries[{PLAIN}]", "a step that"),
    (other(f"context.state.view.entries.{PLAIN}.added", -1), f"context.state.view.entries[{PLAIN}]", "a step that"),
    (other("context.archived_turns", 11), "context.state.view.entries", "a turn that does not exist"),
    (
        other(f"context.state.view.entries.{ENTRY}.messages", [{"role": "tool", "content": "x"}]),
        f"context.state.view.entries[{ENTRY}].messages",
        "calls with their results",
    ),
]


@pytest.mark.parametrize(("damage", "field", "words"), DAMAGES, ids=[field for _, field, _ in DAMAGES])
def test_ses_18_a_damaged_document_is_rejected_with_the_reason(damage: Damage, field: str, words: str) -> None:
    document = deepcopy(RECORDED)
    damage(document)
    error = complaint_about(document)
    assert error is not None
    assert (error.field or "").startswith(field)
    assert words in error.message
    assert len(error.message) < 1_000


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"format": 1}', json.dumps(RECORDED).encode()[:-9]])
def test_ses_18_input_that_is_not_a_document_is_rejected(body: bytes) -> None:
    assert complaint_about(body) is not None


def test_ses_18_a_document_with_many_invalid_entries_is_rejected_at_once() -> None:
    """Validation would report each of them: a small body would take gigabytes and stop the gateway."""
    many = {f"a{number:06}": 0 for number in range(100_000)}
    wrong: list[tuple[str, object]] = [
        ("texts", many),
        ("attachments", many),
        ("texts", {f"{number:064x}": 0 for number in range(100_000)}),
        ("session", many),
        ("turns", [many]),
        ("context", many),
        ("missing", list(many)),
    ]
    bodies = [json.dumps({**RECORDED, field: value}).encode() for field, value in wrong]
    bodies += [json.dumps({**RECORDED, **many}).encode(), json.dumps({**RECORDED, "format": many}).encode()]
    tracemalloc.start()
    try:
        for body in bodies:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert complaint_about(body) is not None
            assert tracemalloc.get_traced_memory()[1] - before < 40_000_000
    finally:
        tracemalloc.stop()


@given(value=JSON, separators=st.sampled_from([(",", ":"), (", ", ": ")]))
def test_api_4_the_values_of_a_document_are_counted_without_making_them(
    value: Any, separators: tuple[str, str]
) -> None:
    count = count_values(json.dumps(value, separators=separators).encode(), limit=10_000)
    assert values_in(value) <= count <= 2 * values_in(value)


@pytest.mark.parametrize("dense", [b"[]", b"{}", b"0", b'""', b"[[]]", b'{"a":[]}'])
def test_api_4_a_document_of_many_small_values_is_rejected_before_it_uses_memory(dense: bytes) -> None:
    """They take up to 40 times their size."""
    body = b'{"turns":[' + b",".join([dense] * 200_000) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(RejectedError, match=r"^body: may have 100,000 JSON values\.$"):
            read_document(body, max_values=100_000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_ses_18_an_imported_attachment_gets_the_type_of_its_content() -> None:
    """A session may have one, and a vendor would refuse every later request of the copy."""
    raw, content = deepcopy(RECORDED), b"no picture"
    name = sha256(content).hexdigest()
    raw["attachments"][name] = b64encode(content).decode()
    raw["turns"][0]["turn"]["attachments"][0]["media_type"] = "image/gif"
    wrong = {"type": "image", "name": "a.png", "media_type": "image/png", "hash": name, "bytes": len(content)}
    raw["turns"][0]["turn"]["attachments"].append(wrong)
    document = read_document(json.dumps(raw).encode(), max_values=MAX_VALUES)
    check_document(document)
    types = [(one.type, getattr(one, "media_type", "")) for one in document.turns[0].turn.attachments]
    assert types == [("image", "image/png"), ("file", "application/octet-stream")]


def test_ses_18_a_fork_of_preserved_turns_has_no_summary_of_later_ones() -> None:
    summary = Summary(text="B, then C.", turns=[(2, 3)])
    entries = [ViewRef(turn="p1", number=1), ViewRef(turn="p4", number=4)]
    context = ContextState(view=ViewState(entries=entries, summary=summary))
    views = [context_through(context, count).view for count in (1, 2, 3, 4)]
    assert [(len(view.entries), view.summary) for view in views] == [(1, None), (1, None), (1, summary), (2, summary)]


TAG = "<img src=x>"
TRICKS = [
    TAG,
    "\\" + TAG,
    f"``` `\n{TAG}",
    f"- a\n  ```\n{TAG}",
    f"- ```\n{TAG}",
    f"  ```\n```\n{TAG}",
    f"> ```\n{TAG}",
    f"```\n````\n{TAG}",
    f"````\n```\n````\n{TAG}",
    f"~~~\n~~~ \n{TAG}",
    f"~~~\n```\n   ~~~\t\n{TAG}",
    f"```\r```\r{TAG}",
    f"``` a`b\n```\n```\n{TAG}",
]


def test_ses_18_the_model_of_a_copy_sees_the_newest_of_two_turns_with_one_id() -> None:
    config = SessionInput(history=ConversationHistoryConfig(max_messages=0))
    copied = CopiedTurns(config.history, config.limits.model_copy(update={"archive_above_bytes": 2}))
    ids = ["again", "b", "again", "c"]
    for number, turn_id in enumerate(ids, start=1):
        turn = {**RECORDED["turns"][1]["turn"], "id": turn_id, "user_message": f"Prompt {number}"}
        copied.add(ExportedTurn.model_validate({"number": number, "turn": turn}))
    copy = copy_with_new_view(config, copied, turns=copied.newest_turns())
    assert sorted({ref.number for ref in copy.context.view.entries}) == [2, 3, 4]


@pytest.mark.parametrize("text", TRICKS)
def test_ses_18_the_markdown_export_escapes_html_in_texts(text: str) -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    turn = ConversationMessage(id="p1", user_message=text, user_timestamp=now, timestamp=now, revision=1)
    assert "<img" not in MarkdownIt("commonmark").render(markdown_turn(1, turn))
