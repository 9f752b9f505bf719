"""The rules that follow from data alone: vectors, examples and properties."""

import json
import os
from pathlib import Path
from typing import Any

VECTORS = Path(os.environ.get("VECTORS_DIR") or Path(__file__).parents[1] / "vectors")
"""Where the vectors are read: `VECTORS_DIR`, else the copies in this repository."""


def vector_cases(name: str) -> list[dict[str, Any]]:
    """Every case of the vector file `name`, in order."""
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))
