"""Without the feature access, everyone on this machine is the admin, and nobody else gets in (API-4)."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.features.access.audit.callers import client_of
from tests.harness import Environment, patient, says
from turnkeeper.api.app import create_app
from turnkeeper.features import FEATURES
from turnkeeper.models.settings.settings import Settings, SettingsError

OTHERS = tuple(name for name in FEATURES if name != "access")


async def test_api_4_without_access_a_prompt_is_answered(shared_env: Environment) -> None:
    settings = shared_env.settings.model_copy(update={"features": OTHERS})
    app = create_app(settings, client=shared_env.client, partials=shared_env.partials, timeouts=patient())
    shared_env.vendor.script = [says("Hello!")]
    async with app.router.lifespan_context(app), client_of(app) as http:
        answer = await http.post("/workflow/no-access/prompt?start=true&wait=60", json={"message": "Hi"})
        assert (answer.status_code, answer.json()["agent_message"]) == (200, "Hello!")
        page = await http.get("/", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (await http.get("/me")).json() == {
            "authentication": False,
            "caller": {"tenant": "", "user": None, "role": "admin"},
        }
        for path in ("/audit", "/login"):
            assert (await http.get(path)).status_code == 404
        assert app.state.services.observers == []


@pytest.mark.parametrize("features", [(), OTHERS])
def test_api_4_without_access_an_authentication_in_the_settings_is_an_error(
    features: tuple[str, ...], tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, features=features, auth={"keys": True}, api_host="0.0.0.0")
    with pytest.raises(SettingsError, match="without the feature access nobody could log in"):
        create_app(settings)


@pytest.mark.parametrize("features", [(), OTHERS, None])
def test_api_4_without_authentication_a_gateway_listens_on_loopback_only(
    features: tuple[str, ...] | None, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match="other machines can reach it, and no key is needed"):
        Settings(state_dir=tmp_path, features=features, api_host="0.0.0.0")
