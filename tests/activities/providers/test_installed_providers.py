"""Providers that other packages add by an entry point (AGN-8)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.api.app import create_app
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import providers, split_model
from turnkeeper.models.settings.settings import Settings

CODE = """
from turnkeeper.activities.providers.offline.provider import OfflineModel
from turnkeeper.activities.providers.provider import Provider, Vendor

class AcmeProvider(OfflineModel, Provider):
    vendor = Vendor("acme", "Acme", prices="")

    @classmethod
    def from_settings(cls, settings):
        return cls()
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with a provider, and one that calls itself like a built-in provider."""
    (tmp_path / "acme_models.py").write_text(CODE)
    (metadata := tmp_path / "acme_models-1.0.dist-info").mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-models\nVersion: 1.0\n")
    lines = "acme = acme_models:AcmeProvider\nopenai = acme_models:AcmeProvider\nNo-Name = acme_models:AcmeProvider\n"
    (metadata / "entry_points.txt").write_text(f"[turnkeeper.providers]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    providers.cache_clear()
    yield
    providers.cache_clear()
    sys.modules.pop("acme_models", None)


@pytest.mark.usefixtures("acme")
def test_agn_8_a_package_adds_a_provider_by_an_entry_point() -> None:
    assert split_model("acme:big") == ("acme", "big")
    registry = ProviderRegistry.from_settings(Settings(model="acme:big"))
    provider, name = registry.resolve("acme:big")
    assert (type(provider).__name__, name) == ("AcmeProvider", "big")
    assert "No-Name" not in providers()


@pytest.mark.usefixtures("acme")
def test_agn_8_a_package_replaces_no_built_in_provider() -> None:
    assert providers()["openai"].startswith("turnkeeper.")


@pytest.mark.usefixtures("acme")
def test_agn_8_an_added_provider_is_in_the_document_of_the_gateway(tmp_path: Path) -> None:
    document = create_app(Settings(state_dir=tmp_path)).openapi()
    (model, _) = document["components"]["schemas"]["StartSession"]["properties"]["model"]["anyOf"]
    assert "|acme)" in model["pattern"]


def test_agn_8_without_the_package_its_models_are_rejected() -> None:
    with pytest.raises(RejectedError, match="names none of the providers"):
        split_model("acme:big")
