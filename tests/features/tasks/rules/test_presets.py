"""An operator sets the presets of hand-offs: CTX-9, OPS-4."""

from pathlib import Path

import pytest

from tests.models.builders import NOW
from turnkeeper.features.tasks.session.task import CreateTask, policy_of
from turnkeeper.features.tasks.session_part import tasks_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.settings.history_policy import KEEP_ASSISTANT, KEEP_USER, HandOffPresets
from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ctx_9_an_operator_sets_the_presets_by_file_and_by_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "turnkeeper.toml").write_text(
        "[hand_off.keep_assistant]\nmax_messages = 20\n[hand_off.keep_assistant.user_text]\nmax_chars = 200\n"
        '[hand_off.keep_user]\ncompress = "summarise"\n'
    )
    monkeypatch.setenv("TURNKEEPER_HAND_OFF__KEEP_USER__OTHER_TEXT__MAX_CHARS", "300")
    monkeypatch.setenv("TURNKEEPER_HAND_OFF__KEEP_USER__RELEVANT_TO", "true")
    monkeypatch.setenv("TURNKEEPER_HAND_OFF__KEEP_USER__ROLES", '["user"]')
    presets = load_settings().hand_off
    assert (presets.keep_assistant.max_messages, presets.keep_assistant.user_text.max_chars) == (20, 200)
    assert presets.keep_assistant.user_text.hard_limit == 300, "the rest is as before"
    assert presets.keep_assistant.max_total_chars == KEEP_ASSISTANT.max_total_chars
    assert (presets.keep_user.compress, presets.keep_user.relevant_to) == ("summarise", True)
    assert (presets.keep_user.other_text.max_chars, presets.keep_user.roles) == (300, ("user",))
    assert presets.keep_user.user_text == KEEP_USER.user_text
    assert Settings().hand_off != HandOffPresets()


def test_ctx_9_what_a_policy_leaves_out_is_as_the_operator_has_set_it() -> None:
    presets = HandOffPresets.model_validate({"keep_user": {"max_messages": 20}, "keep_assistant": {"max_messages": 30}})
    policies = ("keep_user", {}, {"max_messages": 7}, {"max_total_chars": 500}, "keep_assistant")
    tasks = [CreateTask.model_validate({"description": "Go.", "history_policy": policy}) for policy in policies]
    assert [policy_of(task, presets, inherits=False).max_messages for task in tasks] == [20, 20, 7, 20, 30]
    assert policy_of(tasks[-1], presets, inherits=True).user_text.hard_limit is None
    assert policy_of(CreateTask(description="Go."), presets, inherits=False).max_messages == 20


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("max_messages = 0", "hand_off.keep_user.max_messages"),
        ("max_messages = 300", "hand_off.keep_user.max_messages"),
        ('compress = "zip"', "hand_off.keep_user.compress"),
        ("min_relevance = 2", "hand_off.keep_user.min_relevance"),
        ("colour = 1", "hand_off.keep_user.colour"),
        ("user_text = { max_chars = -1 }", "hand_off.keep_user.user_text.max_chars"),
    ],
)
def test_ctx_9_a_wrong_number_of_a_preset_stops_the_start_by_its_name(folder: Path, text: str, name: str) -> None:
    (folder / "turnkeeper.toml").write_text(f"[hand_off.keep_user]\n{text}\n")
    with pytest.raises(SettingsError, match=name):
        load_settings()


def test_ctx_9_a_session_carries_other_presets_only() -> None:
    assert Settings().session_features == {}
    other = HandOffPresets.model_validate({"keep_user": {"max_messages": 20}})
    assert Settings(hand_off=other, features=("listing",)).session_features == {}
    start = SessionInput(features=Settings(hand_off=other).session_features)
    session = Session("s1", SessionInput.model_validate_json(start.model_dump_json()), now=NOW)
    assert tasks_of(session).input.presets == other
    assert session.carry().features == start.features
