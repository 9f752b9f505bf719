"""The registry of providers, which finds the provider of a model (AGT-4)."""

from collections.abc import Callable, Mapping

from turnkeeper.activities.providers.protocol import ModelError, Provider

ProviderFactory = Callable[[], Provider]
"""Creates a provider on first use, so that a worker doesn't import SDKs that it never needs."""


class ProviderRegistry:
    """The providers of this worker, by name. Each factory is called once, on first use, and may raise `ModelError`."""

    def __init__(self, factories: Mapping[str, ProviderFactory]) -> None:
        self._factories = dict(factories)
        self._providers: dict[str, Provider] = {}

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
