"""How large messages are (CTX-6)."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import vector_cases
from turnkeeper.models.context.view_entries import shorten_message
from turnkeeper.models.texts import count_chars, estimate_tokens
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage

TEXT = st.text('ab é😀"\\\n', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=6)


@pytest.mark.parametrize("case", vector_cases("window.json"))
def test_ctx_6_the_estimates_match_the_test_vectors(case):
    messages = [case["messages"][index] for index in case["kept"]]
    assert estimate_tokens(messages) == case["metrics"]["estimated_tokens"]


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("", 0),
        ("naïve 😀", 7),
        (None, 0),
        ([], 2),
        ({"a": [1, None]}, 14),
        ([{"type": "text", "text": "é\n"}], len('[{"type":"text","text":"é\\n"}]')),
    ],
)
def test_ctx_6_content_counts_as_text_or_as_compact_json(content, chars):
    assert count_chars({"role": "user", "content": content}) == chars


def test_ctx_6_tool_calls_count_as_compact_json_beside_the_content():
    calls = [{"id": "c1", "function": {"name": "suche", "arguments": '{"q": "Äpfel"}'}}]
    compact = '[{"id":"c1","function":{"name":"suche","arguments":"{\\"q\\": \\"Äpfel\\"}"}}]'
    assert count_chars({"role": "assistant", "content": "So:", "tool_calls": calls}) == len("So:") + len(compact)


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_ctx_6_an_empty_list_of_tool_calls_has_no_tokens(nothing):
    assert count_chars({"role": "assistant", "content": "Done", "tool_calls": nothing}) == 4


def test_ctx_6_our_own_messages_count_their_calls_as_they_are_written():
    call = CallPart(kind="call", id="1.1.1", name="search", args={"q": "Äpfel"})
    message = ModelMessage(role="assistant", content="So:", tool_calls=[call])
    assert count_chars(message) == len("So:") + len(f"[{call.model_dump_json()}]")
    assert count_chars(ModelMessage(role="tool", content="four", call_id="1.1.1", tool_name="search")) == 4


def test_ctx_6_a_dict_and_an_object_have_the_same_token_count():
    fields = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "tool_calls": [{"id": "1"}]}
    assert count_chars(SimpleNamespace(**fields)) == count_chars(fields)


@pytest.mark.parametrize(("lengths", "tokens"), [([], 0), ([1], 1), ([4], 1), ([5], 2), ([1, 1, 1, 1], 1), ([3, 6], 3)])
def test_ctx_6_tokens_are_rounded_up_once_over_the_sum(lengths, tokens):
    assert estimate_tokens({"role": "user", "content": "x" * length} for length in lengths) == tokens


@given(MESSAGES)
def test_ctx_6_an_estimate_is_a_quarter_of_the_characters_rounded_up(messages):
    def plain_text(content):
        if content is None or isinstance(content, str):
            return content or ""
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    chars = len("".join(plain_text(message["content"]) for message in messages))
    assert chars <= 4 * estimate_tokens(messages) < chars + 4


@given(MESSAGES, MESSAGES)
def test_ctx_6_adding_messages_never_reduces_the_estimate(some, more):
    together, apart = estimate_tokens(some + more), estimate_tokens(some) + estimate_tokens(more)
    assert max(estimate_tokens(some), estimate_tokens(more)) <= together <= apart


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "今天早上下了很大的雨,所以我在家里看书,给朋友写信。下午雨停了,天空中出现了一道美丽的彩虹。",
            40,
        ),
        ("今日は朝から雨が降っていたので、家で本を読んだり、友だちに手紙を書いたりしました。", 31),
        ("신뢰할 수 있는 워크플로 엔진 위에서 실행됩니다.", 15),
        ("กรุณาอ่านไฟล์การตั้งค่าแล้วบอกชื่อโฮสต์และหมายเลขพอร์ต", 28),
        ("Если процесс завершится, сеанс продолжится позже.", 12),
    ],
)
def test_ctx_6_tokens_in_other_scripts_are_estimated_within_about_20_percent(text, tokens):
    assert tokens * 0.75 <= estimate_tokens([{"content": text}]) <= tokens * 1.25


def test_ctx_7_non_latin_text_is_cut_by_its_tokens_not_its_characters():
    short = shorten_message(ModelMessage(role="tool", content="雨" * 1_000), 2_000)
    assert 1_500 <= count_chars(short) <= 2_000
