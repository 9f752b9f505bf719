"""Writes `export.schema.json`, the JSON schema of exported sessions: `python docs/export_schema.py`."""

from pathlib import Path

from turnkeeper.features.copies.document.document import schema_text

if __name__ == "__main__":
    Path(__file__).with_name("export.schema.json").write_text(schema_text())
