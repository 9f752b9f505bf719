"""What a provider is: one class in a folder of its own, with all that we know of its vendor; their registry (AGT-4).

`turnkeeper.testing` has the tests that every provider passes.
"""

import importlib.util
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Self

from turnkeeper.activities.providers.protocol import AttachmentProblem, CallInfo, Delta, ErrorKind, ModelError
from turnkeeper.models.ids import providers
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

ErrorWords = tuple[frozenset[str], re.Pattern[str]]
"""Codes, in lower case, and a pattern of wordings that always mean the same."""


@dataclass(frozen=True)
class Vendor:
    """The facts about a vendor: to name it, to check an installation, to read its errors."""

    name: str
    """What the names of its models begin with: `anthropic`."""
    title: str
    """Its name in sentences: `Anthropic`."""
    example: str = ""
    """One of its models: `claude-sonnet-5-5`."""
    key: str = ""
    """The variable or setting with its key: `ANTHROPIC_API_KEY`. Empty: it needs none."""
    credentials: Sequence[str] = ()
    """Environment variables of which a worker must have one."""
    package: str = ""
    """Its SDK, and the name of our extra that installs it. Empty: it needs none."""
    prices: str | None = None
    """Its name in genai-prices; empty: its models are free; `None`: what they cost is unknown."""
    no_path_advice: str = ""
    """The advice if the address has no such path."""
    conversation_fields: Sequence[str] = ("messages", "input")
    """The fields of a request that a smaller window of the conversation shortens."""
    prompt_fields: Sequence[str] = ("system", "instructions")
    """Its other fields with texts of the session, which no error may repeat."""
    error_words: Mapping[ErrorKind, ErrorWords] = field(default_factory=dict)
    """Its own words for an error, where they mean nothing or something else at other vendors. They are read first."""
    attachment_words: Mapping[AttachmentProblem, ErrorWords] = field(default_factory=dict)
    """The same, for what it refuses of images and PDFs."""

    def missing(self) -> tuple[str, str] | None:
        """Return what this process lacks to ask it, and how to fix that; `None` if nothing."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"the package {self.package} is not installed", f"run `pip install 'turnkeeper[{self.package}]'`"
        if self.credentials and not any(map(os.environ.get, self.credentials)):
            fix = f"run `export {self.key}=...` before you start the worker, or set another model"
            return f"{self.key} is not set", fix
        return None

    def no_key_error(self) -> ModelError:
        return ModelError("auth", f"no key is set; set {self.key} for the worker")


class Provider(ABC):
    """A source of models. Each vendor is one subclass, which the registry finds by its line in `models/ids.py`."""

    vendor: Vendor

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the provider of a worker. It opens nothing yet. Raises `ModelError` if a setting is missing."""

    @classmethod
    def missing(cls, settings: Settings) -> tuple[str, str] | None:
        """Return what a worker with these settings lacks, and how to fix that; `None` if nothing."""
        return cls.vendor.missing()

    @abstractmethod
    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Ask the model `name`; yield deltas, then the whole response. Raises `ModelError`."""

    def left_out(self) -> Mapping[str, Sequence[str]]:
        """Return what is left out of all requests to each model since the vendor refused it, for people (AGT-9)."""
        return {}


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
                "bad_request", f"{model!r} is not provider:name with one of this worker's providers: {provider_names}"
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
