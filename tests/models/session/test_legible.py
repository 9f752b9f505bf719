"""The text of a call's arguments, which people approve: AGT-8."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from turnkeeper.models.legible import MAX_SPACES, legible_json, legible_line, legible_lines

HOSTILE = st.sampled_from(
    "<>|-\"'\\:{}[]()U+0123456789 \t\n\r\x7f\x85\u200b\u200d\u202e\u2800\u3164\ufe0f\ufeff\U000e0041 éש漢"
)
TEXTS = st.text(st.one_of(HOSTILE, st.characters(exclude_categories=["Cs"])), max_size=60) | st.sampled_from(
    [
        "",
        "\n" * 9,
        " " * 90,
        "<U+202E>",
        "<9 x U+200B>",
        "<41 spaces>",
        "<tab>",
        "(9 blank lines)",
        "2 lines",
        "true",
        "1",
    ]
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=4)


def text_of(arguments: dict[str, Any]) -> str:
    return legible_json(to_json(arguments).decode())


@given(ARGUMENTS, ARGUMENTS)
@example({"a": 1}, {"a": 1.0})
@example({"a": 0.0}, {"a": -0.0})
@example({"a": "1"}, {"a": 1})
@example({"a": "x\n\n\n\n\ny"}, {"a": "x\n(4 blank lines)\ny"})
@example({"a": " " * 50}, {"a": "<50 spaces>"})
@example({"a": "\u202e"}, {"a": "<U+202E>"})
@example({"a": ["x"]}, {"a": {"-": "x"}})
@example({"a": "b\n| c"}, {"a": "b", "| c": ""})
@example({'a": "b': ""}, {"a": 'b": "'})
@example({"1": 1, "0": 2}, {"0": 2, "1": 1})
def test_agt_8_distinct_arguments_have_distinct_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (text_of(one) == text_of(other)) == (to_json(one) == to_json(other))


@given(ARGUMENTS)
def test_agt_8_every_character_of_the_text_is_printable_or_a_line_break(arguments: dict[str, Any]) -> None:
    text = text_of(arguments)
    assert text.replace("\n", "").isprintable()
    assert not re.search(rf" {{{MAX_SPACES + 10}}}", text)  # some are margins
    assert not re.search(r"\n{2}| $", text)


@given(ARGUMENTS)
@example({"ids": [1234567890123456789, 2**64, 1.0, -0.0, 1e300]})
def test_agt_8_all_digits_of_numbers_are_in_the_text(arguments: dict[str, Any]) -> None:
    numbers = list[str]()
    json.loads(to_json(arguments), parse_int=numbers.append, parse_float=numbers.append)
    text = text_of(arguments)
    for number in numbers:
        assert re.search(rf"(?:^|[ -]){re.escape(number)}$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "hidden",
    "\u202e\u2066\u200b\u200c\u200d\ufeff\u3164\u115f\u1160\uffa0\u034f\u2800\x7f\x85\xad\u2028\u00a0\U000e0041"
    "\ufe0f\ufe00\U000e0100\u180b\U0001d159\x1b\0",
    ids=lambda char: f"U+{ord(char):04X}",
)
def test_agt_8_invisible_and_bidirectional_characters_are_escaped(hidden: str) -> None:
    assert legible_line(f"a{hidden}b") == f"a<U+{ord(hidden):04X}>b"
    assert legible_line(f"a{hidden * 3}b") == f"a<3 x U+{ord(hidden):04X}>b"


def test_agt_8_keys_stay_in_their_order_and_layout_is_readable() -> None:
    arguments = from_json(
        '{"10":1.0,"9":-0.0,"note":"Dear all,\\n\\n\\n\\n\\n\\tYours","empty":{},"who":[["Ann"],{"a":null}]}'
    )
    assert text_of(arguments).split("\n") == [
        "10: 1.0",
        "9: -0.0",
        "note: 6 lines",
        "  | Dear all,",
        "  (4 blank lines)",
        "  | <tab>Yours",
        "empty: {}",
        "who:",
        "  -",
        '    - "Ann"',
        "  -",
        "    a: null",
    ]
    assert text_of({}) == "(none)"


def test_agt_8_words_of_all_scripts_and_code_are_unchanged() -> None:
    for text in (
        "naïve Ünïcode",
        "日本語",
        "שלום",
        "नमस्ते",
        "👍",
        r"C:\new\d+",
        "if a < b and b <= c: <div>",
        "  indented",
    ):
        assert legible_line(text) == text
    assert list(legible_lines("a\n\nb\n")) == ["| a", "|", "| b", "|"]


def test_agt_8_the_text_of_a_megabyte_is_made_within_seconds() -> None:
    text = text_of({"content": "\u200b" * 300_000 + "é " * 100_000 + "\t\n" * 100_000})
    assert text.startswith("content: 100001 lines\n  | <300000 x U+200B>")
    assert len(text) < 1_000_000
