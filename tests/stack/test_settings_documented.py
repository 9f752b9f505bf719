"""The page of settings says what the code says (OPS-4)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from models.settings import Settings, setting_names

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| `(?P<default>.*?)` \| (?P<unit>.+?) \| (?P<meaning>.+) \|$", re.MULTILINE)


def documented() -> dict[str, str]:
    rows = list(ROW.finditer(PAGE.read_text()))
    assert len(rows) == len({row["name"] for row in rows}), "a setting is documented twice"
    return {row["name"]: row["default"] for row in rows}


def defaults(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from defaults(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.get_default()


@pytest.mark.parametrize(("name", "default"), list(defaults()))
def test_ops_4_every_setting_is_documented_with_its_default(name, default):
    written = default.as_posix() if isinstance(default, Path) else default
    assert documented().get(name) == json.dumps(written)


def test_ops_4_nothing_is_documented_that_is_no_setting():
    assert set(documented()) == set(setting_names())
