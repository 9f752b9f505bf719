"""Writes the table of routes in `http.md` from the OpenAPI document: `python docs/route_table.py`."""

from pathlib import Path

from turnkeeper.api.app import create_app
from turnkeeper.models.settings.settings import Settings

PAGE = Path(__file__).with_name("http.md")
HEADING = "| route | role | what it does |"


def table() -> str:
    """Return a row for each operation: its method and path, the role that it needs, and its first sentence."""
    rows = [HEADING, "|---|---|---|"]
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method, operation in methods.items():
            sentence = operation["description"].partition("\n")[0]
            rows.append(f"| `{method.upper()} {path}` | {operation['x-role']} | {sentence} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """Return the page with the table of today's routes."""
    before, _, rest = page.partition(HEADING)
    return before + table() + rest[rest.index("\n\n") :]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
