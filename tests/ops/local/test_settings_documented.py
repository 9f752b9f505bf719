"""The page of settings says what the code says (OPS-4)."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from pydantic import BaseModel

from turnkeeper.models.context.window import ConversationHistoryConfig, history_config
from turnkeeper.models.settings.settings import Settings, load_settings, setting_names

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| `(?P<default>.*?)` \| (?P<unit>.+?) \| (?P<meaning>.+) \|$", re.MULTILINE)


def documented() -> dict[str, str]:
    rows = list(ROW.finditer(PAGE.read_text()))
    assert len(rows) == len({row["name"] for row in rows}), "a setting is documented twice"
    return {row["name"]: row["default"] for row in rows}


def defaults(model: type[BaseModel] | BaseModel = Settings, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the names of the settings with their defaults; for a nested setting, the fields of its default value."""
    model_type = type(model) if isinstance(model, BaseModel) else model
    for name, field in model_type.model_fields.items():
        value = getattr(model, name) if isinstance(model, BaseModel) else field.get_default()
        if isinstance(value, BaseModel):
            yield from defaults(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@pytest.mark.parametrize(("name", "default"), list(defaults()))
def test_ops_4_every_setting_is_documented_with_its_default(name, default):
    value = default.as_posix() if isinstance(default, Path) else default
    assert documented().get(name) == json.dumps(value)


def test_ops_4_only_settings_are_documented():
    assert set(documented()) == set(setting_names())


EXAMPLE = re.compile(r"^ *```toml\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [example["text"] for example in EXAMPLE.finditer(PAGE.read_text())])
def test_ops_4_every_example_is_valid(text, folder):
    (folder / "turnkeeper.toml").write_text(dedent(text))
    assert load_settings()


def test_ctx_1_the_window_is_documented_in_full_and_in_short():
    full, short = (example["text"] for example in EXAMPLE.finditer(PAGE.read_text()) if "messages" in example["text"])
    assert set(tomllib.loads(full)["conversation"]) == set(ConversationHistoryConfig.model_fields)
    assert history_config(tomllib.loads(short)).max_messages == 100
