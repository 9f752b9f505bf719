"""The registry of providers, which finds the provider of a model (AGT-4)."""

from collections.abc import Callable, Mapping

from turnkeeper.activities.providers.protocol import ModelError, Provider
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts

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

    def refused_parts(self) -> dict[str, list[str]]:
        """Return what is left out of all requests to each model since its vendor refused it (AGT-9)."""
        refused = {name: getattr(provider, "refused", None) for name, provider in self._providers.items()}
        return {
            f"{provider}:{model}": texts
            for provider, parts in refused.items()
            if isinstance(parts, RefusedParts)
            for model, texts in parts.texts().items()
            if texts
        }
