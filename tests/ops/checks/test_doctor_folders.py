"""The doctor's findings about the folders in the settings (OPS-3)."""

import pytest

from tests.ops.checks.test_doctor_models import finding
from turnkeeper.ops.doctor import Finding


@pytest.mark.parametrize(
    ("setting", "subject"), [("state_dir", "state folder"), ("workspace_root", "workspace")], ids=["state", "workspace"]
)
async def test_ops_3_a_file_in_place_of_a_folder_is_reported_with_the_fix(folder, monkeypatch, setting, subject):
    (folder / "taken").touch()
    monkeypatch.setenv(f"TURNKEEPER_{setting.upper()}", "taken")
    assert await finding(subject) == Finding(
        subject, "broken", f"{folder / 'taken'} is not a folder", f"move it, or set {setting}"
    )


async def test_ops_3_a_missing_workspace_is_created_later(folder):
    message = f"{folder / 'turnkeeper-workspace'}, created at the first start"
    assert await finding("workspace") == Finding("workspace", "good", message)
    assert not (folder / "turnkeeper-workspace").exists()
