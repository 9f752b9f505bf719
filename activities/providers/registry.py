"""The registry of providers: finds the class of a model's vendor, and its one instance in this worker (AGT-4)."""

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Self

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.models.ids import providers
from turnkeeper.models.settings.settings import Settings


def provider_class(name: str) -> type[Provider]:
    """Return the provider that a model's name begins with. It is loaded now, without its SDK. Raises `KeyError`."""
    provider: type[Provider] = resolve_name(providers()[name])
    return provider


class ProviderRegistry:
    """The providers of this worker, by name. Each factory is called once, on first use, and may raise `ModelError`."""

    def __init__(self, factories: Mapping[str, Callable[[], Provider]]) -> None:
        self._factories = dict(factories)
        self._providers: dict[str, Provider] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return all providers as the settings say."""

        def build(name: str) -> Provider:
            return provider_class(name).from_settings(settings)

        return cls({name: partial(build, name) for name in providers()})

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Return the provider of `<provider>:<name>` and the name. Raises `ModelError`."""
        provider, colon, name = model.partition(":")
        if not colon or provider not in self._factories:
            provider_names = ", ".join(sorted(self._factories)) or "none"
            raise ModelError(
                "bad_request",
                f"{model!r} is not provider:name with one of this worker's providers: {provider_names}",
            )
        if provider not in self._providers:
            self._providers[provider] = self._factories[provider]()
        return self._providers[provider], name

    def refused_parts(self) -> dict[str, list[str]]:
        """Return what is left out of all requests to each model since its vendor refused it (AGT-9)."""
        return {
            f"{name}:{model}": list(texts)
            for name, provider in self._providers.items()
            for model, texts in provider.left_out().items()
            if texts
        }
