"""Which messages the model still sees (CTX-1 to CTX-4)."""

from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.models import vector_cases
from turnkeeper.models.context.window import (
    ConversationHistoryConfig,
    ConversationMetrics,
    ConversationWindow,
    eviction_config,
    history_config,
    kept_indexes,
    message_groups,
)
from turnkeeper.models.texts import estimate_tokens
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage

# ── Histories in the three forms ─────────────────────────────────────────────────────────────────────────────────────


def says(role, text="…"):
    return {"role": role, "content": text}


def anthropic_step(*ids):
    uses = [{"type": "tool_use", "id": each, "name": "search", "input": {"q": each}} for each in ids]
    results = [{"type": "tool_result", "tool_use_id": each, "content": "found"} for each in ids]
    asking = {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, *uses]}
    return [asking, {"role": "user", "content": results}]


def openai_step(*ids):
    calls = [{"id": each, "type": "function", "function": {"name": "search", "arguments": "{}"}} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": "found"} for each in ids]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def own_step(*ids):
    calls = [CallPart(kind="call", id=each, name="search", args={"q": each}) for each in ids]
    results = [ModelMessage(role="tool", content="found", call_id=each, tool_name="search") for each in ids]
    return [ModelMessage(role="assistant", tool_calls=calls), *results]


STEPS = {"anthropic": anthropic_step, "openai": openai_step, "our own": own_step}


@dataclass(frozen=True)
class History:
    """Messages and their groups."""

    messages: list
    groups: list[range]


def history_of(parts):
    """Put `parts`, each a list of messages that belong together, one after another."""
    messages, groups = [], []
    for part in parts:
        groups.append(range(len(messages), len(messages) + len(part)))
        messages += part
    return History(messages, groups)


@st.composite
def histories(draw, max_parts=30):
    """Build a history in one form; a step makes 1 to 4 calls, 0 calls stand for a plain message."""
    step = STEPS[draw(st.sampled_from(sorted(STEPS)))]
    sizes = draw(st.lists(st.integers(0, 4), max_size=max_parts))
    parts = []
    for number, calls in enumerate(sizes):
        plain = says(draw(st.sampled_from(["user", "assistant"])))
        parts.append(step(*(f"{number}.{call}" for call in range(calls))) if calls else [plain])
    return history_of(parts)


CONFIGS = st.builds(
    ConversationHistoryConfig,
    max_messages=st.integers(0, 30),
    preserve_first_n=st.integers(0, 8),
    preserve_last_n=st.integers(0, 12),
    evict_block=st.integers(0, 12),
)
ROOMY_CONFIGS = st.builds(
    lambda first_n, last_n, block, spare: ConversationHistoryConfig(
        max_messages=first_n + last_n + block + spare,
        preserve_first_n=first_n,
        preserve_last_n=last_n,
        evict_block=block,
    ),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(1, 6),
)
"""Settings whose head and tail leave room within the cap, and within the cap lowered by a block."""
PINS = st.frozensets(st.integers(0, 60), max_size=3)


def fixed(history, config, pinned=frozenset()):
    """Return the indexes that always stay: whole groups that reach into head or tail or hold a pinned message."""
    total = len(history.messages)
    fixed_indexes = {*range(config.preserve_first_n), *range(total - config.preserve_last_n, total), *pinned}
    return {index for group in history.groups if fixed_indexes & set(group) for index in group}


def texts(count):
    return [says("user", str(index)) for index in range(count)]


def contents(messages):
    return [message["content"] for message in messages]


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", vector_cases("window.json"))
def test_ctx_2_ctx_3_trimming_matches_the_shared_vectors(case):
    messages = case["messages"]
    result = ConversationWindow(ConversationHistoryConfig(**case["config"])).trim(messages)
    place = {id(message): index for index, message in enumerate(messages)}  # equal messages are not the same
    assert [place[id(message)] for message in result.trimmed] == case["kept"]
    assert [place[id(message)] for message in result.evicted] == case["evicted"]
    assert result.warned is case["warned"]
    assert result.metrics.model_dump() == case["metrics"]


def test_ctx_3_results_without_an_id_belong_to_the_calls_right_before_them():
    asks = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    result = {"role": "tool", "content": "found"}
    messages = [says("user"), asks, result, says("user"), result, says("assistant")]
    assert message_groups(messages) == [range(1), range(1, 3), range(3, 4), range(4, 5), range(5, 6)]


@pytest.mark.parametrize("id", [{"a": 1}, ["c1"], 1.5, True, ""])
def test_ctx_3_an_invalid_call_id_counts_as_no_id(id):
    asks = {"role": "assistant", "content": None, "tool_calls": [{"id": id}]}
    result = {"role": "tool", "content": "found", "tool_call_id": id}
    assert message_groups([says("user"), asks, result, says("user")]) == [range(1), range(1, 3), range(3, 4)]


# ── CTX-1: settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctx_1_omitted_fields_have_their_defaults():
    assert ConversationHistoryConfig().model_dump() == {
        "max_messages": 100,
        "summarize_on_trim": False,
        "preserve_first_n": 1,
        "preserve_last_n": 20,
        "evict_block": 35,
    }


@pytest.mark.parametrize("key", ["max_messages", "preserve_first_n", "preserve_last_n", "evict_block"])
def test_ctx_1_a_negative_number_is_an_error_that_names_its_key(key):
    with pytest.raises(ValidationError, match=rf"(?m)^{key}$"):
        ConversationHistoryConfig.model_validate({key: -1})


def test_ctx_1_an_unknown_key_is_an_error_that_names_it():
    with pytest.raises(ValidationError, match=r"(?m)^max_mesages$"):
        ConversationHistoryConfig.model_validate({"max_mesages": 10})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ConversationHistoryConfig()),
        ({"conversation": None, "max_conversation_messages": None}, ConversationHistoryConfig()),
        ({"max_conversation_messages": 0}, ConversationHistoryConfig(max_messages=0)),
        ({"max_conversation_messages": 30, "max_iterations": 50}, ConversationHistoryConfig(max_messages=30)),
        (
            {"conversation": {"max_messages": 30, "summarize_on_trim": True}},
            ConversationHistoryConfig(max_messages=30, summarize_on_trim=True),
        ),
    ],
)
def test_ctx_1_the_settings_file_accepts_the_shorthand_or_the_full_form(settings, expected):
    assert history_config(settings) == expected


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_conversation_messages": -1}, r"(?m)^max_conversation_messages$"),
        ({"conversation": {"preserve_last_n": -1}}, r"(?m)^conversation\.preserve_last_n$"),
        ({"conversation": {"keep": 1}}, r"(?m)^conversation\.keep$"),
        ({"max_conversation_messages": 100, "conversation": {"max_messages": 100}}, "give only one"),
        ({"max_conversation_messages": 100, "conversation": {}}, r"max_conversation_messages .* conversation"),
    ],
)
def test_ctx_1_wrong_settings_are_errors_that_name_the_key_as_written(settings, named):
    with pytest.raises(ValidationError, match=named):
        history_config(settings)


# ── CTX-2: head, tail, and the latest of the middle ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_ctx_2_up_to_the_cap_messages_are_unchanged(count):
    messages = texts(count)
    result = ConversationWindow(ConversationHistoryConfig(max_messages=10, preserve_last_n=20)).trim(messages)
    assert (result.trimmed, result.evicted, result.warned) == (messages, [], False)


def test_ctx_2_the_oldest_messages_of_the_middle_are_evicted_first():
    config = ConversationHistoryConfig(max_messages=6, preserve_first_n=2, preserve_last_n=2)
    result = ConversationWindow(config).trim(texts(9))
    assert contents(result.trimmed) == ["0", "1", "5", "6", "7", "8"]
    assert contents(result.evicted) == ["2", "3", "4"]
    assert result.warning is None


def test_ctx_2_metrics_count_messages_and_estimate_the_remaining_tokens():
    messages = [says("user", "x" * 10) for _ in range(5)]
    result = ConversationWindow(ConversationHistoryConfig(max_messages=3, preserve_last_n=1)).trim(messages)
    assert result.metrics == ConversationMetrics(
        total_messages=5, preserved_messages=3, evicted_messages=2, estimated_tokens=8
    )


@pytest.mark.parametrize("last_n", [8, 9, 12])
def test_ctx_2_settings_that_fill_the_cap_preserve_only_head_and_tail_with_a_warning(last_n):
    config = ConversationHistoryConfig(max_messages=10, preserve_first_n=2, preserve_last_n=last_n)
    indexes, warning = kept_indexes(texts(30), config)
    assert indexes == [0, 1, *range(30 - last_n, 30)]
    assert warning == f"preserve_first_n=2 and preserve_last_n={last_n} leave no room within max_messages=10: " + (
        "only these are kept"
    )


def test_ctx_2_zero_disables_trimming():
    messages = texts(500)
    result = ConversationWindow(ConversationHistoryConfig(max_messages=0)).trim(messages)
    assert (result.trimmed, result.warned) == (messages, False)


def test_ctx_2_messages_may_be_objects_of_any_class():
    messages = [SimpleNamespace(role="user", content=str(index)) for index in range(5)]
    result = ConversationWindow(ConversationHistoryConfig(max_messages=2, preserve_last_n=1)).trim(messages)
    assert result.trimmed == [messages[0], messages[4]]


@given(histories(), CONFIGS, st.integers(0, 3))
def test_ctx_2_under_the_cap_nothing_changes(history, config, spare):
    total = len(history.messages)
    wide = config.model_copy(update={"max_messages": total + spare})
    assert kept_indexes(history.messages, wide) == (list(range(total)), None)


@given(histories(), CONFIGS)
def test_ctx_2_trimmed_and_evicted_messages_are_in_order_and_unmodified(history, config):
    before = deepcopy(history.messages)
    result = ConversationWindow(config).trim(history.messages)
    assert history.messages == before
    place = {id(message): index for index, message in enumerate(history.messages)}
    trimmed, evicted = ([place[id(message)] for message in side] for side in (result.trimmed, result.evicted))
    assert trimmed == sorted(trimmed)
    assert evicted == sorted(evicted)
    assert sorted(trimmed + evicted) == list(range(len(before)))


@given(histories(), CONFIGS)
def test_ctx_2_metrics_describe_the_result(history, config):
    result = ConversationWindow(config).trim(history.messages)
    assert result.metrics == ConversationMetrics(
        total_messages=len(history.messages),
        preserved_messages=len(result.trimmed),
        evicted_messages=len(result.evicted),
        estimated_tokens=estimate_tokens(result.trimmed),
    )


@given(histories(), CONFIGS)
def test_ctx_2_the_first_and_the_last_always_stay_and_the_middle_has_no_gap(history, config):
    total = len(history.messages)
    indexes, _ = kept_indexes(history.messages, config)
    assert set(range(min(total, config.preserve_first_n))) <= set(indexes)
    assert set(range(max(0, total - config.preserve_last_n), total)) <= set(indexes)
    assert sum(after - before > 1 for before, after in pairwise(indexes)) <= 1


@given(histories(), CONFIGS)
def test_ctx_2_messages_that_fit_stay(history, config):
    """The latest evicted group would not have fitted."""
    indexes, _ = kept_indexes(history.messages, config)
    evicted = [group for group in history.groups if group.start not in indexes]
    assert not evicted or len(indexes) + len(evicted[-1]) > config.max_messages


@given(histories(), CONFIGS)
def test_ctx_2_trimming_is_idempotent(history, config):
    once = ConversationWindow(config).trim(history.messages).trimmed
    assert ConversationWindow(config).trim(once).trimmed == once


# ── CTX-3: whole groups ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_ctx_3_a_call_and_its_results_are_one_group(step):
    history = history_of([[says("user")], step("a", "b"), step("c"), [says("assistant")], [says("user")]])
    assert message_groups(history.messages) == history.groups


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_ctx_3_head_and_tail_grow_to_whole_groups_without_a_warning(step):
    history = history_of([step("a", "b"), *([message] for message in texts(9)), step("c", "d")])
    config = ConversationHistoryConfig(max_messages=3, preserve_first_n=1, preserve_last_n=1)
    indexes, warning = kept_indexes(history.messages, config)
    assert (indexes, warning) == ([*history.groups[0], *history.groups[-1]], None)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_ctx_3_a_group_that_does_not_fit_is_evicted_whole_and_ends_the_window(step):
    history = history_of([[says("user")], [says("assistant")], step("a", "b"), *([message] for message in texts(3))])
    total = len(history.messages)
    config = ConversationHistoryConfig(max_messages=5, preserve_first_n=1, preserve_last_n=2)
    assert kept_indexes(history.messages, config)[0] == [0, total - 3, total - 2, total - 1]


@pytest.mark.parametrize(("first_n", "last_n"), [(3, 3), (9, 9), (2, 2)])
def test_ctx_3_if_head_and_tail_meet_everything_stays_with_a_warning(first_n, last_n):
    messages = [says("user"), *openai_step("a", "b", "c"), says("assistant")]
    config = ConversationHistoryConfig(max_messages=5, preserve_first_n=first_n, preserve_last_n=last_n)
    indexes, warning = kept_indexes(messages, config)
    assert indexes == list(range(6))
    assert (
        warning == f"preserve_first_n={first_n} and preserve_last_n={last_n} keep all 6 messages, over max_messages=5"
    )


def test_ctx_3_a_prompt_between_a_call_and_its_result_does_not_separate_them():
    asking, result = openai_step("a")
    assert message_groups([says("user"), asking, says("user"), result, says("user")]) == [
        range(1),
        range(1, 4),
        range(4, 5),
    ]


def test_ctx_3_calls_split_over_several_messages_stay_with_all_their_results():
    first, first_result = openai_step("a")
    second, second_result = openai_step("b")
    assert message_groups([first, second, first_result, second_result]) == [range(4)]


def test_ctx_3_ids_repeated_in_later_steps_do_not_join_the_steps():
    assert message_groups([*own_step("call_0"), *own_step("call_0"), *own_step("call_0")]) == [
        range(2),
        range(2, 4),
        range(4, 6),
    ]


def test_ctx_3_results_without_ids_belong_to_the_call_they_follow():
    asking, *_ = openai_step("a", "b")
    result = {"role": "tool", "content": "found"}
    assert message_groups([asking, result, result, says("user"), result]) == [range(3), range(3, 4), range(4, 5)]


@given(histories())
def test_ctx_3_messages_are_grouped_as_they_were_generated(history):
    assert message_groups(history.messages) == history.groups


@given(histories(), CONFIGS, PINS)
def test_ctx_3_a_call_and_its_results_are_never_separated(history, config, pinned):
    indexes, _ = kept_indexes(history.messages, config, pinned=pinned)
    assert all(len({index in indexes for index in group}) == 1 for group in history.groups)


@given(histories(), ROOMY_CONFIGS)
def test_ctx_3_the_cap_is_exceeded_by_less_than_one_group_at_each_end(history, config):
    indexes, _ = kept_indexes(history.messages, config)
    longest = max(map(len, history.groups), default=1)
    assert len(indexes) <= config.max_messages + 2 * (longest - 1)


@given(histories(), CONFIGS)
def test_ctx_3_if_only_whole_groups_fill_the_cap_there_is_no_warning(history, config):
    indexes, warning = kept_indexes(history.messages, config)
    over = config.max_messages and len(history.messages) > config.max_messages
    head_meets_tail = len(indexes) == len(history.messages)
    no_room_asked_for = config.preserve_first_n + config.preserve_last_n >= config.max_messages
    assert (warning is not None) == bool(over and (head_meets_tail or no_room_asked_for))


# ── CTX-4: the session's use of it ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "lowered"),
    [
        ({}, 65),
        ({"evict_block": 10}, 90),
        ({"max_messages": 25}, 21),
        ({"max_messages": 10}, 21),
        ({"evict_block": 0}, 100),
        ({"max_messages": 0}, 0),
        ({"max_messages": 5, "preserve_first_n": 0, "preserve_last_n": 0}, 1),
    ],
)
def test_ctx_4_a_session_trims_to_a_block_below_its_cap(config, lowered):
    given_config = ConversationHistoryConfig(**config)
    assert eviction_config(given_config) == given_config.model_copy(update={"max_messages": lowered})


def test_ctx_4_a_pinned_message_stays_and_counts_towards_the_cap():
    config = ConversationHistoryConfig(max_messages=5, preserve_first_n=1, preserve_last_n=2)
    assert kept_indexes(texts(12), config)[0] == [0, 8, 9, 10, 11]
    assert kept_indexes(texts(12), config, pinned={3})[0] == [0, 3, 9, 10, 11]
    assert kept_indexes(texts(12), config, pinned={9})[0] == [0, 8, 9, 10, 11]


def test_ctx_4_a_middle_that_is_pinned_as_a_whole_stays_without_a_warning():
    config = ConversationHistoryConfig(max_messages=4, preserve_first_n=1, preserve_last_n=2)
    assert kept_indexes(texts(5), config, pinned={1, 2}) == ([0, 1, 2, 3, 4], None)


@given(histories(), CONFIGS, PINS)
def test_ctx_4_pinned_messages_are_never_evicted_and_count_towards_the_cap(history, config, pinned):
    indexes, _ = kept_indexes(history.messages, config, pinned=pinned)
    must_stay = fixed(history, config, pinned)
    assert must_stay <= set(indexes)
    assert set(indexes) == must_stay or not config.max_messages or len(indexes) <= config.max_messages


@given(histories(), CONFIGS, PINS)
def test_ctx_4_pinning_adds_only_the_pinned_messages_and_changes_no_warning(history, config, pinned):
    indexes, warning = kept_indexes(history.messages, config, pinned=pinned)
    unpinned, warning_without = kept_indexes(history.messages, config)
    assert set(indexes) <= set(unpinned) | fixed(history, config, pinned)
    assert warning == warning_without


@given(histories(max_parts=60), ROOMY_CONFIGS)
def test_ctx_4_an_eviction_frees_a_whole_block_unless_head_and_tail_fill_it(history, config):
    view = []
    for group in history.groups:
        view += history.messages[group.start : group.stop]
        if len(view) > config.max_messages:
            must_stay = fixed(History(view, message_groups(view)), config)
            indexes, _ = kept_indexes(view, eviction_config(config))
            assert set(indexes) == must_stay or len(indexes) <= config.max_messages - config.evict_block
            view = [view[index] for index in indexes]


def test_ctx_4_a_turn_of_fifty_tool_calls_stays_within_thirty_messages():
    config = ConversationHistoryConfig(max_messages=30)
    view, evictions = [says("user", "earlier"), says("assistant"), says("user", "the running turn")], 0
    for number in range(60):
        view += own_step(f"1.{number}.1")
        if len(view) > 30:
            running = view.index(says("user", "the running turn"))
            indexes, _ = kept_indexes(view, eviction_config(config), pinned={running})
            view, evictions = [view[index] for index in indexes], evictions + 1
        assert len(view) <= 30
        assert says("user", "the running turn") in view
    assert 0 < evictions <= 60 * 2 / 8 + 1
