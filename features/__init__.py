"""What a session can do without. Each feature is one folder with all its layers, and one object, its `Feature`.

    settings.features ── enable() ──┬── Feature.gateway ────────> api/app.py   routes, services, middleware
                                    ├── Feature.worker ─────────> worker.py    workflows, activities, offline texts
                                    ├── Feature.session_part ───> models/session/session.py     state, rules, tools
                                    └── Feature.workflow_part ──> workflows/workflow_part.py    what a session runs

The core imports no feature. A feature imports the core, and other features only if its first sentence says so; a test
holds both. To add one, write its folder, and name it in `FEATURES`.
"""

from collections.abc import Collection
from importlib import import_module

from turnkeeper.features.feature import Feature

FEATURES = ("access", "listing", "copies", "tasks", "mcp", "ai_sdk")
"""All features, each after those that it needs."""


def enabled(names: Collection[str] | None) -> list[Feature]:
    """Return the features with these names, in the order of `FEATURES`; `None`: all.

    Raises:
        SettingsError: a name is of no feature, or a feature needs another one that is not among them.
    """
    from turnkeeper.models.settings.settings import SettingsError  # slow to load, and seldom needed

    names = FEATURES if names is None else names
    if unknown := sorted(set(names) - set(FEATURES)):
        raise SettingsError(f"features: there is no {unknown[0]!r}; there are {', '.join(FEATURES)}")
    features = [_load(name) for name in FEATURES if name in names]
    for feature in features:
        if missing := [name for name in feature.needs if name not in names]:
            raise SettingsError(f"features: {feature.name} needs {missing[0]}")
    return features


def enable(names: Collection[str] | None, *, runs_workflows: bool) -> list[Feature]:
    """Return the features with these names, and give their parts to all sessions of this process.

    `runs_workflows`: the process runs or replays sessions. All that do this for an installation, and its gateways, have
    the same features: a session with anything of another feature fails its workflow tasks until that is enabled again.
    """
    from turnkeeper.models.session.session import use_parts

    features = enabled(names)
    use_parts([part for feature in features if (part := feature.session_part)])
    if runs_workflows:
        from turnkeeper.workflows.workflow_part import use_workflow_parts

        use_workflow_parts([kind for feature in features if (kind := feature.workflow_part)])
    return features


def _load(name: str) -> Feature:
    feature: Feature = import_module(f"{__name__}.{name}").FEATURE
    return feature
