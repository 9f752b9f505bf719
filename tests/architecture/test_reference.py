"""The generated pages of `docs/` say what the code says (API-6, API-7, OPS-4, SES-18)."""

import pytest

from docs.reference import DOCS, PAGES, cli_page


@pytest.mark.parametrize("name", PAGES)
def test_ops_4_every_generated_page_is_up_to_date(name: str) -> None:
    text = (DOCS / name).read_text()
    assert text == PAGES[name](text), "run: python -m docs.reference"


def test_api_6_the_page_of_the_command_line_has_the_commands_of_features() -> None:
    page = cli_page()
    assert [
        name for name in ("up", "chat", "tasks create", "keys create") if f"## `turnkeeper {name}" not in page
    ] == []
    assert "| `--role ROLE` | `writer` |" in page
    assert "--activity-reports" not in page, "a hidden option"
