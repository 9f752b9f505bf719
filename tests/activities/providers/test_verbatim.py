"""How a conversation goes back to a vendor: its own blocks as they came, ids that every vendor takes: AGT-3."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.activities.providers.answer_fields import arguments_of, join_pieces
from turnkeeper.activities.providers.request_encoding import Block, CallIds, own_items, sendable_name
from turnkeeper.models.transcript.conversation import BlobRef
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ProviderState

CALL: Block = {"kind": "call", "id": "a"}


def step(*ids: str, state: ProviderState | None = None) -> ModelMessage:
    calls = [CallPart(kind="call", id=call_id, name="look") for call_id in ids]
    return ModelMessage(role="assistant", tool_calls=calls, state=state)


def state_of(*items: Any, api: str = "acme", **fields: Any) -> ProviderState:
    return ProviderState(api=api, model="m", items=list(items), **fields)


def id_of(block: Block) -> str | None:
    return str(block["id"]) if block.get("kind") == "call" else None


def test_agt_3_a_steps_own_blocks_are_sent_back_to_their_api_unchanged() -> None:
    blocks = [{"kind": "thought", "signature": "s"}, CALL, {"kind": "of next year", "x": [1, None]}]
    assert own_items(step("a", state=state_of(*blocks)), "acme", call_id_of=id_of) == blocks


@pytest.mark.parametrize(
    "message",
    [
        step("a"),
        step("a", state=state_of(CALL, api="other")),
        step("a", state=state_of()),
        step("a", state=state_of(CALL, "no object")),
        step("a", state=state_of(CALL, blob=BlobRef(hash="0", chars=1, bytes=1))),
        step("b", state=state_of(CALL)),
        step(state=state_of(CALL)),
        step("a", "b", state=state_of(CALL)),
        step("a", "a", state=state_of(CALL, CALL)),
    ],
    ids=["none", "another api's", "empty", "odd", "in the store", "other call", "unasked", "missing", "twice"],
)
def test_agt_3_blocks_that_cannot_be_sent_back_are_re_encoded(message: ModelMessage) -> None:
    assert own_items(message, "acme", call_id_of=id_of) is None


odd_ids = st.text(st.sampled_from("ab:.é -_"), max_size=70)
steps = st.lists(st.tuples(st.booleans(), st.lists(odd_ids, min_size=1, max_size=4)), max_size=6)


def written_chars(conversation: list[tuple[bool, list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Return for each step the ids of its calls and of their results."""
    ids, results = CallIds(), []
    for is_own, call_ids in conversation:
        message = step(*call_ids)
        own = call_ids if is_own and ids.reserve_own_ids(message) else ids.new_ids_for(message)
        results.append((own, [ids.id_for_result(ModelMessage(role="tool", call_id=call_id)) for call_id in call_ids]))
    return results


@given(steps)
def test_agt_3_every_result_matches_its_call_and_new_ids_suit_every_vendor(
    conversation: list[tuple[bool, list[str]]],
) -> None:
    seen: set[str] = set()
    for (is_own, own), (calls, results) in zip(conversation, written_chars(conversation), strict=True):
        assert results == calls
        assert len(set(calls)) == len(calls)
        assert not seen & set(calls)
        is_kept = is_own and len(set(own)) == len(own) and not seen & set(own)
        assert is_kept == (is_own and calls == own)
        if not is_kept:
            assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id) for call_id in calls)
        seen.update(calls)


@given(steps, st.data())
def test_agt_3_appending_messages_keeps_earlier_ids_unchanged(
    conversation: list[tuple[bool, list[str]]], data: st.DataObject
) -> None:
    length = data.draw(st.integers(min_value=0, max_value=len(conversation)))
    assert written_chars(conversation)[:length] == written_chars(conversation[:length])


def test_agt_3_a_result_without_a_call_still_has_an_id() -> None:
    assert CallIds().id_for_result(ModelMessage(role="tool", call_id="x:1")) == "x_1"
    assert CallIds().id_for_result(ModelMessage(role="tool")) == "_"


@given(st.text(max_size=100))
def test_agt_3_a_rewritten_name_suits_every_vendor(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", sendable_name(name))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '"x"',
        "7",
        "null",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        "{'a': 1}",
        '{"a":' * 5_000,
        "\x00",
    ],
)
def test_agt_3_a_value_that_is_not_a_json_object_stays_text(text: str) -> None:
    assert arguments_of(text) == text


@given(st.lists(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_agt_3_texts_are_joined_so_that_they_can_be_stored(chars: list[str]) -> None:
    text = "".join(chars)
    halves = [half for char in text for half in _utf16_halves(char)]
    assert join_pieces(halves) == text.replace("\x00", "\ufffd")
    join_pieces([*halves, "\ud800"]).encode()


def _utf16_halves(char: str) -> list[str]:
    if ord(char) < 0x10000:
        return [char]
    rest = ord(char) - 0x10000
    return [chr(0xD800 + (rest >> 10)), chr(0xDC00 + (rest & 0x3FF))]
