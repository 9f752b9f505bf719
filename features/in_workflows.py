"""The features of a process that runs or replays sessions."""

from collections.abc import Sequence

from turnkeeper.features import enable
from turnkeeper.features.feature import Feature
from turnkeeper.workflows.workflow_part import use_workflow_parts


def enable_in_workflows(features: Sequence[Feature]) -> None:
    """Give the features' parts to all sessions of this process.

    All workers of an installation, and its gateways, have the same features: a session with anything of another feature
    fails its workflow tasks until that is enabled again.
    """
    enable(features)
    use_workflow_parts([kind for feature in features if (kind := feature.workflow_part)])
