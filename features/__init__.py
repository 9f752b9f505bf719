"""What a session can do without. Each feature is one folder with all its layers, and one object, its `Feature`.

    settings.features ── enabled() ──┬── Feature.gateway ──> api/app.py   routes, services, middleware
                                     └── Feature.worker ───> worker.py    workflows, activities

The core imports no feature. A feature imports the core, and other features only if its first sentence says so; a test
holds both. To add one, write its folder, and name it in `FEATURES`.
"""

from collections.abc import Collection
from importlib import import_module

from turnkeeper.features.feature import Feature

FEATURES = ("access", "listing", "copies", "tasks", "agents", "mcp", "ai_sdk")
"""All features, each after those that it needs."""


def enabled(names: Collection[str] | None) -> list[Feature]:
    """Return the features with these names, in the order of `FEATURES`; `None`: all.

    Raises:
        SettingsError: a name is of no feature, or a feature needs another one that is not among them.
    """
    from turnkeeper.models.settings.settings import SettingsError  # which still imports a feature

    names = FEATURES if names is None else names
    if unknown := sorted(set(names) - set(FEATURES)):
        raise SettingsError(f"features: there is no {unknown[0]!r}; there are {', '.join(FEATURES)}")
    features = [_load(name) for name in FEATURES if name in names]
    for feature in features:
        if missing := [name for name in feature.needs if name not in names]:
            raise SettingsError(f"features: {feature.name} needs {missing[0]}")
    return features


def _load(name: str) -> Feature:
    feature: Feature = import_module(f"{__name__}.{name}").FEATURE
    return feature
