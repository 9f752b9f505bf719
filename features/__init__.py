"""What a session can do without. Each feature is one folder with all its layers, and one object, its `Feature`.

    enabled() ──┬── Feature.gateway ────────> api/app.py    routes, services, authentication, observers of changes
    as the      ├── Feature.worker ─────────> worker.py     workflows, activities, texts of the offline model
    settings    ├── Feature.session_part ───> models/session/session.py: state, rules, tools
    say         ├── Feature.workflow_part ──> workflows/workflow_part.py: what a session runs
                └── Feature.commands ───────> cli.py        commands, and a check for doctor and up
    all ─────────── Feature.load_tables ────> stores        tables: all stores have the same ones

The core imports no feature. A feature imports the core, and other features only if its docstring begins with them; a
test holds both. To add one, write its folder, and name it in `FEATURES`.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from turnkeeper.features.feature import Feature

if TYPE_CHECKING:
    from turnkeeper.models.settings.settings import Settings

FEATURES = ("access", "listing", "copies", "tasks", "agents", "mcp", "ai_sdk")
"""All features, each after those that it needs."""


def enabled(settings: "Settings") -> list[Feature]:
    """Return the features that the settings name, in the order of `FEATURES`.

    Raises:
        SettingsError: a name is of no feature, or a feature or another setting needs one that is not among them.
    """
    from turnkeeper.models.settings.settings import SettingsError  # slow to load, and seldom needed

    names = FEATURES if settings.features is None else settings.features
    if unknown := sorted(set(names) - set(FEATURES)):
        raise SettingsError(f"features: there is no {unknown[0]!r}; there are {', '.join(FEATURES)}")
    if settings.auth.is_on and "access" not in names:
        raise SettingsError("auth: without the feature access nobody could log in; add it to features")
    if settings.agents and "agents" not in names:
        raise SettingsError("agents: without the feature agents nobody reads the file; add it to features")
    features = [_load(name) for name in FEATURES if name in names]
    for feature in features:
        if missing := [name for name in feature.needs if name not in names]:
            raise SettingsError(f"features: {feature.name} needs {missing[0]}")
    return features


def all_features() -> list[Feature]:
    """Return all features, also those that are off."""
    return [_load(name) for name in FEATURES]


def load_tables() -> None:
    """Define the tables of all features: stores have the same ones, whatever is on."""
    for feature in all_features():
        feature.load_tables()


def enable(features: Sequence[Feature]) -> None:
    """Give the features' parts to all sessions of this process, which runs no workflows."""
    from turnkeeper.models.session.session import use_parts

    use_parts([part for feature in features if (part := feature.session_part)])


def enable_in_workflows(features: Sequence[Feature]) -> None:
    """Give the features' parts to all sessions of this process, which runs or replays them.

    All workers of an installation, and its gateways, have the same features: a session with anything of another feature
    fails its workflow tasks until that is enabled again.
    """
    from turnkeeper.workflows.workflow_part import use_workflow_parts  # gateways load no workflows

    enable(features)
    use_workflow_parts([part for feature in features if (part := feature.workflow_part)])


def _load(name: str) -> Feature:
    feature: Feature = import_module(f"{__name__}.{name}").FEATURE
    return feature
