"""The pages of `docs/` say what the code says, and lead to what is there (API-6, API-7, OPS-4, SES-18)."""

import re
from pathlib import Path

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


MARKDOWN = sorted([*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_every_link_of_the_docs_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not re.match(r"\w+:", link)]
    targets = {link: (page.parent / link.partition("#")[0] if link[0] != "#" else page) for link in links}
    assert [link for link, target in targets.items() if not target.exists()] == []
    anchors = [(link, link.partition("#")[2], target) for link, target in targets.items() if target.suffix == ".md"]
    assert [link for link, anchor, target in anchors if anchor and anchor not in headings(target)] == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def test_the_architecture_names_at_most_22_files() -> None:
    files = set(re.findall(r"`([\w/]+\.py)`", (DOCS / "architecture.md").read_text()))
    assert len(files) <= 22
    assert [file for file in files if not (DOCS.parent / file).exists()] == []
