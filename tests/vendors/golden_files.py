"""Request bodies as they were at the last review, in `tests/vendors/golden/`.

A vendor binds its thinking to the exact prefix, and caches by it: what changes these files changes every running
session. With `RENEW_GOLDEN=1` a test writes its file and fails once; the difference is then to be read.
"""

import difflib
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, body: dict[str, Any]) -> None:
    """Compare `body` with the file `name`, byte for byte and with keys in the same order."""
    file = FOLDER / f"{name}.json"
    current = json.dumps(body, ensure_ascii=False, indent=1) + "\n"
    recorded = file.read_text(encoding="utf-8") if file.exists() else ""
    if os.environ.get("RENEW_GOLDEN") and current != recorded:
        FOLDER.mkdir(exist_ok=True)
        file.write_text(current, encoding="utf-8")
        raise AssertionError(f"{file.name} was renewed: read the difference, then run again")
    difference = difflib.unified_diff(recorded.splitlines(), current.splitlines(), "as it was", "as it is", lineterm="")
    assert current == recorded, "\n".join(difference)
