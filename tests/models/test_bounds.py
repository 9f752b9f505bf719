"""The last guard over what enters the history (CTX-14, SES-16)."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeeper.models.texts import bound_text, encodable, encodable_text, head_within, tail_within

TEXT = st.text(st.characters(codec=None) | st.sampled_from("aé€😀\x00\ud800\udfff\n"), max_size=300)
BOUND = st.integers(0, 400)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(TEXT, BOUND, BOUND)
@example("€" * 300, 300, 100)
@example("a" * 300, 10, 1_000)
def test_ctx_14_the_limits_are_never_exceeded_and_the_result_can_be_encoded(text, max_chars, max_bytes):
    bounded = bound_text(text, max_chars, max_bytes)
    assert len(bounded) <= max_chars
    assert len(bounded.encode()) <= max_bytes
    assert "\x00" not in bounded


@given(TEXT, BOUND, BOUND)
def test_ctx_14_bounding_a_text_twice_changes_nothing(text, max_chars, max_bytes):
    once = bound_text(text, max_chars, max_bytes)
    assert bound_text(once, max_chars, max_bytes) == once


@given(TEXT.map(encodable_text))
def test_ctx_14_a_text_within_the_limits_is_unchanged(text):
    assert bound_text(text, len(text), len(text.encode())) == text


@given(TEXT.map(encodable_text), st.integers(80, 250), st.integers(80, 1_000))
def test_ctx_14_head_and_tail_stay_and_the_mark_says_how_much_was_removed(text, max_chars, max_bytes):
    bounded = bound_text(text, max_chars, max_bytes)
    if bounded == text:
        return
    head, _, rest = bounded.partition("\n[... ")
    mark, _, tail = rest.rpartition(" ...]\n")
    left_out = int(mark.split()[0].replace(",", ""))
    assert text.startswith(head)
    assert text.endswith(tail)
    assert mark == f"{left_out:,} of {len(text):,} characters left out"
    assert len(head) + left_out + len(tail) == len(text)


def test_ctx_14_most_of_the_space_is_used_and_the_head_gets_two_thirds():
    bounded = bound_text("a" * 50_000 + "z" * 50_000, 30_000, 120_000)
    assert 29_990 <= len(bounded) <= 30_000
    assert 1.9 < bounded.count("a") / bounded.count("z") < 2.1


@pytest.mark.parametrize(("max_chars", "max_bytes"), [(0, 10), (10, 0), (0, 0), (-1, -1)])
def test_ctx_14_a_limit_of_zero_leaves_nothing(max_chars, max_bytes):
    assert bound_text("text", max_chars, max_bytes) == ""


@given(TEXT.map(encodable_text), BOUND)
def test_ctx_14_a_cut_splits_no_character_and_wastes_no_space_for_one(text, max_bytes):
    head, tail = head_within(text, max_bytes), tail_within(text, max_bytes)
    assert text.startswith(head)
    assert text.endswith(tail)
    for part in (head, tail):
        assert part == text or max_bytes - 4 < len(part.encode()) <= max_bytes


@given(JSON)
def test_ses_16_any_json_value_becomes_encodable(value):
    cleaned = encodable(value)
    text = json.dumps(cleaned, ensure_ascii=False)
    assert json.loads(text.encode()) == cleaned
    assert "\\u0000" not in text.replace("\\\\", "")
    assert encodable(cleaned) == cleaned


def test_ses_16_unstorable_characters_are_replaced_one_by_one():
    assert encodable_text("a\x00b\ud83d\ude00c") == "a\ufffdb\ufffd\ufffdc"
