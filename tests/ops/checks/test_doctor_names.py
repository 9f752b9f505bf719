"""The doctor's findings on the host names of a gateway (OPS-3, API-4)."""

from pathlib import Path

import pytest

from tests.api.conftest import served
from tests.ops.checks.test_doctor_models import finding
from turnkeeper.models.settings.settings import Settings

WIDE = {"TURNKEEPER_API_HOST": "0.0.0.0", "TURNKEEPER_AUTH__KEYS": "true"}


@pytest.mark.parametrize(
    ("env", "note"),
    [
        ({}, ""),
        (WIDE, "; other machines reach it only by IP address: set allowed_hosts or public_url for names"),
        (
            {**WIDE, "TURNKEEPER_PUBLIC_URL": "https://a.example", "TURNKEEPER_ALLOWED_HOSTS": "b,c"},
            "; other machines reach it by IP address or as a.example, b, c",
        ),
    ],
)
async def test_api_4_the_doctor_reports_the_names_under_which_the_gateway_is_reachable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], note: str
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with served(None, Settings(state_dir=folder)) as url:
        for variable, value in {"TURNKEEPER_API_PORT": url.rpartition(":")[2], **env}.items():
            monkeypatch.setenv(variable, value)
        result = await finding("gateway")
    assert (result.state, result.message) == ("good", f"{url}{note}")
