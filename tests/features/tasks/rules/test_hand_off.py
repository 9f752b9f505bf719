"""A conversation handed to a task: what is refused, fixed, cut and dropped (CTX-9 to CTX-11)."""

import re
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import vector_cases
from tests.speed import cpu_seconds
from turnkeeper.features.tasks.rules.enrichment import format_task_enrichment_prompt
from turnkeeper.features.tasks.rules.hand_off import validate_conversation_history
from turnkeeper.features.tasks.rules.task_context import OMITTED, is_timestamp, moment_of
from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.settings.history_policy import (
    KEEP_ASSISTANT,
    KEEP_USER,
    PRESETS,
    HistoryPolicy,
    TextLimit,
    resolve_policy,
)

NOW = "2025-10-29T13:30:00Z"
RULE = "=" * 80
AT = "2025-10-29T10:00:00Z"


def says(role="user", content="…", timestamp=AT):
    return {"role": role, "content": content, "timestamp": timestamp}


def hand_off(history, policy="keep_user"):
    return validate_conversation_history(history, policy, NOW)


def refused(history, policy="keep_user"):
    with pytest.raises(TaskValidationError) as caught:
        hand_off(history, policy)
    return caught.value


def as_text(warning):
    """Write a warning as the vectors do: its code, and the index of the message it is about."""
    index = re.match(r"conversation_history(\[\d+\])", warning.field)
    return warning.code + (index[1] if index else "")


def codes(history, policy="keep_user"):
    return [as_text(warning) for warning in hand_off(history, policy).warnings]


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CASES = vector_cases("hand_off.json")


def outcome(case):
    """Run a vector case; return the outcome in the vector's form."""
    try:
        history, warnings = validate_conversation_history(case["given"], case["preset"], case["now"])
    except TaskValidationError as error:
        return {"error_field": error.field}
    return {
        "history": history and history.model_dump(),
        "warnings": sorted(map(as_text, warnings)),
        "prompt": format_task_enrichment_prompt({"conversation_history": history}),
    }


def agrees(case):
    """Return whether the outcome is the expected one; the case has only the section between the rules."""
    actual = outcome(case)
    if "error_field" in case or "error_field" in actual:
        return actual.get("error_field") == case.get("error_field")
    section = case["section"]
    prompt = f"{RULE}\n🎯 TASK CONTEXT (Provided by task creator)\n{RULE}\n\n{section}\n\n{RULE}" if section else ""
    return actual == {"history": case["history"], "warnings": sorted(case["warnings"]), "prompt": prompt}


@pytest.mark.parametrize("case", CASES)
def test_ctx_9_ctx_10_ctx_11_tsk_3_the_shared_vectors_give_the_same_hand_off(case):
    assert agrees(case)


def changed_by_one_character(value):
    """Yield every copy of a JSON value in which one character of one string, or one number, differs."""
    if isinstance(value, str):
        for index in {0, len(value) // 2, len(value) - 1} if value else ():
            yield value[:index] + ("x" if value[index] != "x" else "y") + value[index + 1 :]
    elif isinstance(value, bool | int):
        yield not value if isinstance(value, bool) else value + 1
    elif isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for changed in changed_by_one_character(value[key]):
                copy = value.copy()
                copy[key] = changed
                yield copy


@pytest.mark.parametrize("case", CASES)
def test_ctx_9_ctx_10_ctx_11_a_vector_with_one_changed_character_fails(case):
    for name in case.keys() & {"history", "warnings", "section", "error_field"}:
        for changed in changed_by_one_character(case[name]):
            assert not agrees({**case, name: changed})


# ── CTX-9: policies ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctx_9_the_presets_have_the_numbers_of_the_table():
    assert PRESETS["keep_user"].model_dump() == {
        "roles": ("user", "assistant", "orchestrator"),
        "max_messages": 50,
        "user_text": {
            "max_chars": 8_000,
            "kept_chars": 7_900,
            "marker": " ... (truncated, original: {n} chars)",
            "hard_limit": None,
        },
        "other_text": {"max_chars": 150, "kept_chars": None, "marker": " ... (truncated)", "hard_limit": None},
        "max_total_chars": 60_000,
        "min_messages": 5,
    }
    assert PRESETS["keep_assistant"].model_dump() == {
        "roles": ("user", "assistant"),
        "max_messages": 50,
        "user_text": {"max_chars": 150, "kept_chars": None, "marker": "... [truncated]", "hard_limit": 300},
        "other_text": {"max_chars": 8_192, "kept_chars": None, "marker": "... [truncated]", "hard_limit": 16_384},
        "max_total_chars": 15_360,
        "min_messages": 5,
    }


@pytest.mark.parametrize(
    ("policy", "role", "length", "max_chars", "ending"),
    [
        ("keep_user", "user", 8_000, 8_000, ""),
        ("keep_user", "user", 8_001, 7_900, " ... (truncated, original: 8001 chars)"),
        ("keep_user", "assistant", 150, 150, ""),
        ("keep_user", "assistant", 151, 150, " ... (truncated)"),
        ("keep_user", "orchestrator", 100_000, 150, " ... (truncated)"),
        ("keep_assistant", "user", 150, 150, ""),
        ("keep_assistant", "user", 151, 150, "... [truncated]"),
        ("keep_assistant", "user", 300, 150, "... [truncated]"),
        ("keep_assistant", "assistant", 8_192, 8_192, ""),
        ("keep_assistant", "assistant", 8_193, 8_192, "... [truncated]"),
        ("keep_assistant", "assistant", 16_384, 8_192, "... [truncated]"),
    ],
)
def test_ctx_9_a_text_over_its_limit_is_cut_to_its_beginning_and_marked(policy, role, length, max_chars, ending):
    text = "".join(chr(ord("a") + index % 26) for index in range(length))
    history, warnings = hand_off([says(role, f"\n {text}\t")], policy)
    message = history.messages[0]
    assert (message.content, message.original_length) == (text[:max_chars] + ending, length)
    assert message.truncated == bool(ending) == bool(history.truncated_count)
    assert [as_text(warning) for warning in warnings] == (["truncated[0]"] if ending else [])


def test_ctx_9_only_the_latest_fifty_messages_are_looked_at():
    nonsense = [None, {"role": "system"}, says("user", 5), says("user", "")]
    history, warnings = hand_off(nonsense * 10 + [says(content=str(number)) for number in range(50)])
    assert [message.content for message in history.messages] == [str(number) for number in range(50)]
    assert [(warning.code, warning.field) for warning in warnings] == [("too_many_messages", "conversation_history")]
    assert "most recent 50" in warnings[0].message


def test_ctx_9_over_the_total_size_the_oldest_are_dropped_and_the_next_one_says_so():
    history, warnings = hand_off([says(content=f"{number} " + "x" * 7_900) for number in range(9)])
    assert [message.content[:1] for message in history.messages] == [".", "3", "4", "5", "6", "7", "8"]
    assert history.messages[0].content.startswith(f"{OMITTED}2 x")
    assert [as_text(warning) for warning in warnings] == ["total_size"]
    assert "the oldest 2 were dropped" in warnings[0].message


@pytest.mark.parametrize(("length", "dropped"), [(1_499, 0), (1_500, 1)])
def test_ctx_9_the_size_of_a_message_is_its_content_role_timestamp_and_ten(length, dropped):
    """Ten messages of 1,536 characters are just within 15,360."""
    messages = [says("assistant", "x" * (1_536 - len("assistant") - len(AT) - 10)) for _ in range(10)]
    assert hand_off(messages, "keep_assistant").warnings == []
    messages[3] = says("assistant", messages[3]["content"] + "x")
    history, warnings = hand_off(messages, "keep_assistant")
    assert (len(history.messages), [as_text(warning) for warning in warnings]) == (9, ["total_size"])


def test_ctx_9_five_messages_stay_however_large_and_without_the_prefix():
    history, warnings = hand_off([says("assistant", "x" * 8_192)] * 5, "keep_assistant")
    assert [len(message.content) for message in history.messages] == [8_192] * 5
    assert [as_text(warning) for warning in warnings] == ["total_size"]
    assert "none of the latest 5 is dropped" in warnings[0].message


def test_ctx_9_every_number_of_a_policy_can_be_another():
    policy = HistoryPolicy(
        roles=("user",),
        max_messages=3,
        user_text=TextLimit(max_chars=6, kept_chars=4, marker=" <{n}>", hard_limit=20),
        max_total_chars=90,
        min_messages=1,
    )
    history, warnings = hand_off([says(content=text) for text in ("one", "two", "three", "4567890")], policy)
    assert [message.content for message in history.messages] == [OMITTED + "three", "4567 <7>"]
    assert [as_text(warning) for warning in warnings] == ["too_many_messages", "truncated[3]", "total_size"]
    assert refused([says("assistant")], policy).field == "conversation_history[0].role"
    assert refused([says(content="x" * 21)], policy).field == "conversation_history[0].content"


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ("keep_everything", "history_policy"),
        (None, "history_policy"),
        (5, "history_policy"),
        ([], "history_policy"),
        ({"max_mesages": 5}, "history_policy.max_mesages"),
        ({"\x00\n": 5}, "history_policy.\\x00\\n"),
        ({"max_messages": 0}, "history_policy.max_messages"),
        ({"max_messages": 10**5_000}, "history_policy.max_messages"),
        ({"max_messages": True}, "history_policy.max_messages"),
        ({"max_messages": "50"}, "history_policy.max_messages"),
        ({"min_messages": -1}, "history_policy.min_messages"),
        ({"max_total_chars": 1e309}, "history_policy.max_total_chars"),
        ({"roles": []}, "history_policy.roles"),
        ({"compress": "zip"}, "history_policy.compress"),
        ({"relevant_to": 5}, "history_policy.relevant_to"),
        ({"relevant_to": "x" * 20_001}, "history_policy.relevant_to"),
        ({"relevant_to": "\ud800"}, "history_policy.relevant_to"),
        ({"min_relevance": 1.1}, "history_policy.min_relevance"),
        ({"min_relevance": "0.5"}, "history_policy.min_relevance"),
        ({"roles": ["system"]}, "history_policy.roles[0]"),
        ({"user_text": {}}, "history_policy.user_text.max_chars"),
        ({"user_text": {"max_chars": 5, "kept_chars": 6}}, "history_policy.user_text"),
        ({"user_text": {"max_chars": 5, "marker": "x" * 201}}, "history_policy.user_text.marker"),
        ({"other_text": {"max_chars": 5, "hard_limit": 0}}, "history_policy.other_text.hard_limit"),
        ({"other_text": {"max_chars": 5, "hard_limit": 4}}, "history_policy.other_text"),
        ({"x" * 5_000: 5}, "history_policy." + "x" * 64),
    ],
    ids=preview,
)
def test_ctx_9_a_policy_that_makes_no_sense_is_an_error_that_names_its_field(policy, field):
    error = refused([says()], policy)
    assert (error.field, error.error_type) == (field, "invalid_value")
    assert error.reason
    assert error.value


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"max_chars": 5, "hard_limit": 4}, "hard_limit=4 is under max_chars=5"),
        ({"max_chars": 5, "kept_chars": 6}, "kept_chars=6 is over max_chars=5"),
    ],
)
def test_ctx_9_numbers_of_a_policy_that_contradict_each_other_are_named(numbers, named):
    assert named in refused([says()], {"user_text": numbers}).reason
    TextLimit(max_chars=5, hard_limit=5)


def test_ctx_9_a_policy_is_the_name_of_a_preset_a_policy_or_its_fields():
    assert resolve_policy("keep_user") is KEEP_USER
    assert resolve_policy(KEEP_ASSISTANT) is KEEP_ASSISTANT
    assert resolve_policy({"max_messages": 7}) == HistoryPolicy(max_messages=7)
    assert resolve_policy({}) == KEEP_USER


# ── CTX-10: what is refused, and what is fixed ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("history", [None, []])
def test_ctx_10_no_history_gives_none_without_a_warning(history):
    assert hand_off(history) == (None, [])


@pytest.mark.parametrize(
    ("history", "field", "error_type"),
    [
        ({}, "conversation_history", "type_error"),
        ("", "conversation_history", "type_error"),
        ("inherit", "conversation_history", "type_error"),
        (0, "conversation_history", "type_error"),
        (False, "conversation_history", "type_error"),
        ((says(),), "conversation_history", "type_error"),
        ([says(), None], "conversation_history[1]", "type_error"),
        ([says(), [says()]], "conversation_history[1]", "type_error"),
        ([{}], "conversation_history[0]", "missing_field"),
        ([{1: 2, None: 3}], "conversation_history[0]", "missing_field"),
        ([{"role": "system"}], "conversation_history[0]", "missing_field"),
        ([{"content": 5}], "conversation_history[0]", "missing_field"),
        ([says("system")], "conversation_history[0].role", "invalid_value"),
        ([says(None)], "conversation_history[0].role", "invalid_value"),
        ([says(["user"])], "conversation_history[0].role", "invalid_value"),
        ([says("user\ud800")], "conversation_history[0].role", "invalid_value"),
        ([says("u" * 5_000_000)], "conversation_history[0].role", "invalid_value"),
        ([says("system", 5)], "conversation_history[0].role", "invalid_value"),
        ([says("user", None)], "conversation_history[0].content", "type_error"),
        ([says("user", 10**5_000)], "conversation_history[0].content", "type_error"),
        ([says("user", {"a": 1})], "conversation_history[0].content", "type_error"),
        ([says("user", b"x")], "conversation_history[0].content", "type_error"),
        ([says("user", True)], "conversation_history[0].content", "type_error"),
        ([says("user", ""), says("user", 5)], "conversation_history[1].content", "type_error"),
        ([says("", "")], "conversation_history[0].role", "invalid_value"),
    ],
    ids=preview,
)
def test_ctx_10_input_that_cannot_be_fixed_is_an_error_that_names_its_field(history, field, error_type):
    error = refused(history)
    assert (error.field, error.error_type) == (field, error_type)
    assert str(error) == f"{field}: {error.reason}"
    assert 0 < len(error.value) < 500
    assert error.value.isascii()


@pytest.mark.parametrize(("role", "most"), [("user", 300), ("assistant", 16_384)])
def test_ctx_10_a_trimmed_text_over_the_hard_limit_is_an_error(role, most):
    assert hand_off([says(role, " " * 50 + "x" * most)], "keep_assistant").history.truncated_count == 1
    error = refused([says(role, "x" * (most + 1))], "keep_assistant")
    assert (error.field, error.error_type) == ("conversation_history[0].content", "too_long")
    assert f"{most:,}" in error.reason


def test_ctx_10_the_first_error_in_the_callers_order_wins_with_the_callers_index():
    history = [says()] * 60
    history[30], history[20] = says("user", 5), says("system")
    assert refused(history).field == "conversation_history[20].role"
    history[3] = None
    assert refused(history).field == "conversation_history[20].role"


def test_ctx_10_what_is_beyond_the_latest_fifty_costs_and_changes_nothing():
    history = [object()] * 100_000 + [says()] * 50
    assert len(hand_off(history).history.messages) == 50
    assert cpu_seconds(lambda: hand_off(history)) < 1


@pytest.mark.parametrize("role", ["user", "User", " USER\n", "\u2003uSeR"])
def test_ctx_10_roles_are_trimmed_and_lower_cased(role):
    assert hand_off([says(role)]).history.messages[0].role == "user"


@pytest.mark.parametrize(
    ("timestamp", "code"),
    [
        (None, "missing_timestamp"),
        ("", "missing_timestamp"),
        (" ", "invalid_timestamp"),
        ("yesterday", "invalid_timestamp"),
        ("2025-13-01", "invalid_timestamp"),
        ("2025-10-29\n13:30:00", "invalid_timestamp"),
        ("2025-10-29T13:30:00Z\n", "invalid_timestamp"),
        ("\u0662025-10-29", "invalid_timestamp"),
        ("\ud800", "invalid_timestamp"),
        ("9" * 5_000_000, "invalid_timestamp"),
        (0, "invalid_timestamp"),
        (False, "invalid_timestamp"),
        (10**5_000, "invalid_timestamp"),
        (float("nan"), "invalid_timestamp"),
        ([], "invalid_timestamp"),
        ({"at": NOW}, "invalid_timestamp"),
    ],
    ids=preview,
)
def test_ctx_10_a_timestamp_that_is_none_is_now_with_a_warning(timestamp, code):
    history, warnings = hand_off([says(timestamp=timestamp)])
    assert history.messages[0].timestamp == NOW
    assert [(warning.code, warning.field) for warning in warnings] == [(code, "conversation_history[0].timestamp")]
    assert NOW in warnings[0].message


def test_ctx_10_without_the_key_a_timestamp_is_missing_too():
    assert codes([{"role": "user", "content": "x"}]) == ["missing_timestamp[0]"]


@pytest.mark.parametrize("content", ["", " ", "\n\t\u2003"])
def test_ctx_10_a_skipped_message_gives_no_other_warning(content):
    assert codes([says(content=content, timestamp=17), says()]) == ["empty_content[0]"]
    assert codes([says(content=content, timestamp=None)]) == ["empty_content[0]", "all_filtered"]
    assert hand_off([says(content=content)]).history is None


def test_ctx_10_every_warning_names_its_field_and_says_what_was_done():
    history = [
        *(says(content="x" * 9_000), says(content=""), says(content="a\x00")),
        *(says(timestamp="soon"), says(timestamp=None)),
    ]
    for warning in hand_off(history).warnings:
        assert warning.field.startswith("conversation_history")
        assert re.search(r"(was|were) (cut|skipped|set|replaced)", warning.message)
        assert warning.severity in ("low", "medium", "high")


def test_ctx_10_no_attachments_give_no_warning():
    assert hand_off([{**says(), "attachments": []}, {**says(), "attachments": None}]).warnings == []


def test_ctx_10_a_message_may_be_any_mapping_and_hold_more_than_is_asked_for():
    message = MappingProxyType({**says(), "name": "Ann", 5: "\ud800"})
    assert hand_off([message]).history.messages[0].content == "…"


@pytest.mark.parametrize(
    ("text", "cleaned", "count"),
    [
        ("a\x00b", "a\ufffdb", "1 character was"),
        ("a\ud800b", "a\ufffdb", "1 character was"),
        ("\udfff\ud83d", "\ufffd\ufffd", "2 characters were"),
        ("\x00" * 9_000, "\ufffd" * 7_900 + " ... (truncated, original: 9000 chars)", "7,900 characters were"),
    ],
    ids=preview,
)
def test_ctx_10_characters_that_cannot_be_stored_are_replaced_with_a_warning(text, cleaned, count):
    history, warnings = hand_off([says(), says(content=f" {text}\n")])
    message = history.messages[1]
    assert (message.content, message.original_length) == (cleaned, len(text))
    replaced = warnings[-1]
    assert (replaced.code, replaced.field) == ("replaced_characters", "conversation_history[1].content")
    assert replaced.message.startswith(f"{count} replaced by U+FFFD")


def test_ctx_10_a_storable_text_gives_no_warning_even_if_its_cut_part_would():
    assert codes([says(content="\ufffd\x01\ue000\U0010ffff")]) == []
    assert codes([says("assistant", "x" * 150 + "\x00")]) == ["truncated[0]"]


def test_ctx_10_fifty_contents_of_five_megabytes_are_no_matter():
    messages = [says(content="x" * 5_000_000)] * 50
    history, _ = hand_off(messages)
    assert cpu_seconds(lambda: hand_off(messages)) < 1
    assert history.messages[-1].original_length == 5_000_000


# ── CTX-11: the stored form ──────────────────────────────────────────────────────────────────────────────────────────


def test_ctx_11_oldest_and_newest_are_by_time_and_written_as_in_the_request():
    stamps = ["2025-10-29T10:00:00+02:00", "2025-10-29T08:30:00", "2025-10-29", "2025-10-28T23:59:59-05:00"]
    metadata = hand_off([says(timestamp=stamp) for stamp in stamps]).history.metadata
    assert (metadata.oldest_message, metadata.newest_message) == ("2025-10-29", "2025-10-29T08:30:00")
    assert metadata.collection_time == NOW


def test_ctx_11_the_first_and_the_last_year_can_be_compared():
    stamps = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2025-10-29T10:00:00"]
    metadata = hand_off([says(timestamp=stamp) for stamp in stamps]).history.metadata
    assert (metadata.oldest_message, metadata.newest_message) == (stamps[0], stamps[1])


def test_ctx_11_now_may_be_a_moment_and_must_be_one():
    now = datetime(2025, 10, 29, 13, 30, tzinfo=timezone(timedelta(hours=2)))
    history, _ = validate_conversation_history([says(timestamp=None)], "keep_user", now)
    assert history.messages[0].timestamp == history.metadata.collection_time == "2025-10-29T13:30:00+02:00"
    with pytest.raises(ValueError, match="timestamp"):
        validate_conversation_history([says()], "keep_user", "now")


def test_ctx_11_the_stored_form_survives_json():
    history, _ = hand_off([says(content="a\nb"), says("assistant", "x" * 200)])
    assert type(history).model_validate_json(history.model_dump_json()) == history


# ── Properties ───────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=40),
    st.builds(
        lambda text, times: text * times, st.sampled_from(["x", "a\n", "\u2028=", "\x00\ud800"]), st.integers(0, 9_000)
    ),
)
STAMPS = st.one_of(
    st.none() | st.just("") | st.integers() | st.text(max_size=12),
    st.datetimes(timezones=st.none() | st.just(UTC)).map(datetime.isoformat),
    st.dates().map(lambda day: day.isoformat()),
)
MESSAGES = st.builds(says, st.sampled_from(["user", " Assistant ", "ORCHESTRATOR"]), TEXTS, STAMPS)
HISTORIES = st.lists(MESSAGES, max_size=70)
LIMITS = st.builds(
    lambda most, less, marker: TextLimit(max_chars=most, kept_chars=max(1, most - less), marker=marker),
    st.integers(1, 200),
    st.integers(0, 50),
    st.sampled_from(["", "...", " of {n}", "\n{n}{n}\x00"]),
)
POLICIES = st.just(KEEP_USER) | st.builds(
    HistoryPolicy,
    max_messages=st.integers(1, 60),
    user_text=LIMITS,
    other_text=LIMITS,
    max_total_chars=st.integers(1, 5_000),
    min_messages=st.integers(1, 10),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "timestamp", "attachments"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(HISTORIES, POLICIES)
def test_ctx_9_everything_is_within_the_policys_bounds(history, policy):
    result = hand_off(history, policy).history
    messages = result.messages if result else []
    assert len(messages) <= policy.max_messages
    sizes = [len(m.content) + len(m.role) + len(m.timestamp) + 10 for m in messages]
    assert sum(sizes) <= policy.max_total_chars + len(OMITTED) or len(messages) <= policy.min_messages
    for message in messages:
        limit = policy.text_limit(message.role)
        longest = limit.max_chars + len(limit.marker.replace("{n}", str(message.original_length)))
        assert len(message.content.removeprefix(OMITTED)) <= longest
        assert message.truncated == (message.original_length > limit.max_chars)
        assert message.content.encode()
        assert is_timestamp(message.timestamp)


@given(HISTORIES, POLICIES)
def test_ctx_10_the_callers_objects_are_never_modified(history, policy):
    before = deepcopy(history)
    hand_off(history, policy)
    assert history == before


@given(HISTORIES, POLICIES)
def test_ctx_10_the_order_is_the_same_and_only_the_oldest_are_dropped(history, policy):
    for number, message in enumerate(history):
        message["content"] = f"{number}:{message['content']}:" if message["content"].strip() else ""
    wide = policy.model_copy(
        update={"max_total_chars": 1_000_000, **dict.fromkeys(("user_text", "other_text"), KEEP_USER.user_text)}
    )
    result, narrow = (
        hand_off(history, wide).history,
        wide.model_copy(update={"max_total_chars": policy.max_total_chars}),
    )
    numbers = [int(m.content.partition(":")[0]) for m in result.messages] if result else []
    with_text = [n for n, message in enumerate(history) if message["content"]]
    assert numbers == [n for n in with_text if n >= len(history) - policy.max_messages]
    fewer = hand_off(history, narrow).history
    left = [int(m.content.removeprefix(OMITTED).partition(":")[0]) for m in fewer.messages] if fewer else []
    assert left == numbers[len(numbers) - len(left) :]


@given(HISTORIES, POLICIES)
def test_ctx_11_the_numbers_are_those_of_the_messages(history, policy):
    result = hand_off(history, policy).history
    if result is None:
        return
    moments = [moment_of(message.timestamp) for message in result.messages]
    assert result.total_messages == len(result.messages)
    assert result.truncated_count == sum(message.truncated for message in result.messages)
    assert moment_of(result.metadata.oldest_message) == min(moments)
    assert moment_of(result.metadata.newest_message) == max(moments)


@given(HISTORIES)
def test_ctx_9_a_validated_history_passes_again_unchanged(history):
    once = hand_off(history).history
    if once is None or once.truncated_count:
        return
    again, warnings = hand_off([message.model_dump() for message in once.messages])
    assert [(m.role, m.content, m.timestamp) for m in again.messages] == [
        (m.role, m.content, m.timestamp) for m in once.messages
    ]
    assert {warning.code for warning in warnings} <= {"total_size"}


@given(JSON, st.sampled_from(sorted(PRESETS)))
def test_ctx_10_any_input_is_accepted_or_rejected_by_its_field(history, preset):
    result = outcome({"given": history, "preset": preset, "now": NOW})
    assert result.get("error_field", "conversation_history").startswith("conversation_history")
