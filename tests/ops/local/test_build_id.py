"""The worker's build id: another one for other code, and the same for the same (OPS-8)."""

import shutil
from pathlib import Path

from turnkeeper.worker import ID_CHARS, SESSION_PACKAGES, build_id


def test_ops_8_a_build_id_depends_only_on_the_code(tmp_path):
    root = Path(__file__).parents[3]
    for package in SESSION_PACKAGES:
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert build_id(tmp_path) == build_id() == build_id()
    assert len(build_id()) == ID_CHARS

    (tmp_path / "models" / "ids.py").write_text("changed = True\n")
    changed = build_id(tmp_path)
    assert changed != build_id()
    (tmp_path / "models" / "ids.py").rename(tmp_path / "models" / "other.py")
    assert build_id(tmp_path) not in (changed, build_id())
