"""The page of settings has every setting, and its examples are valid (OPS-4)."""

import re
import tomllib
from textwrap import dedent

import pytest

from docs.reference import DOCS, rows
from turnkeeper.models.context.window import ConversationHistoryConfig, history_config
from turnkeeper.models.settings.settings import Settings, load_settings, setting_names

PAGE = DOCS / "settings.md"


def test_ops_4_every_setting_has_a_docstring() -> None:
    documented = list(rows(Settings))
    assert [row.name for row in documented] == list(setting_names())
    assert [row.name for row in documented if not row.meaning] == []


EXAMPLE = re.compile(r"^ *```toml\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [example["text"] for example in EXAMPLE.finditer(PAGE.read_text())])
def test_ops_4_every_example_is_valid(text, folder):
    (folder / "turnkeeper.toml").write_text(dedent(text))
    assert load_settings()


def test_ctx_1_the_window_is_documented_in_full_and_in_short():
    full, short = (example["text"] for example in EXAMPLE.finditer(PAGE.read_text()) if "messages" in example["text"])
    assert set(tomllib.loads(full)["conversation"]) == set(ConversationHistoryConfig.model_fields)
    assert history_config(tomllib.loads(short)).max_messages == 100
