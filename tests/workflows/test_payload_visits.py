"""Payloads that nothing changes are not visited; those of others are (OPS-8)."""

from dataclasses import replace
from typing import Any

import pytest
from temporalio.bridge import worker as sdk
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec, WorkflowSerializationContext
from temporalio.converter._extstore import StorageOperationMetrics
from temporalio.worker._workflow import _CommandAwareDataConverter

from turnkeeper.workflows.hosting.evicting_runner import EvictableInstance, needs_visits
from turnkeeper.workflows.hosting.payload_visits import VISITS, spare_needless_visits


class Reversed(PayloadCodec):
    """Stands for any codec."""

    async def encode(self, payloads: Any) -> Any:
        return payloads

    async def decode(self, payloads: Any) -> Any:
        return payloads


def converter_of(instance: Any, converter: DataConverter) -> DataConverter:
    """Return the SDK's own converter for an activation of `instance`."""
    context = WorkflowSerializationContext(namespace="default", workflow_id="s1")
    return _CommandAwareDataConverter.create(instance, converter, converter, context)


def instance_of(converter: DataConverter) -> EvictableInstance:
    return EvictableInstance(
        None,  # type: ignore[arg-type]  # never activated
        needs_visits=needs_visits(converter),
        evict=lambda: None,
        check_soon=lambda: None,
    )


@pytest.fixture
def visited(monkeypatch) -> list[str]:
    """Return the names of the SDK's functions that were called."""
    names: list[str] = []

    def recording(name: str):
        async def visit(*_: object, **__: object) -> StorageOperationMetrics:
            names.append(name)
            return StorageOperationMetrics()

        return visit

    for name in VISITS:
        monkeypatch.setattr(sdk, name, recording(name))
    spare_needless_visits()
    spare_needless_visits()
    return names


async def visit_all(converter: DataConverter) -> None:
    for name in VISITS:
        await getattr(sdk, name)(object(), converter, storage_concurrency_limit=1)


async def test_ops_8_without_a_codec_no_payload_of_our_workflows_is_visited(visited):
    await visit_all(converter_of(instance_of(pydantic_data_converter), pydantic_data_converter))
    assert visited == []


async def test_ops_8_with_a_codec_every_payload_is_visited(visited):
    coded = replace(pydantic_data_converter, payload_codec=Reversed())
    await visit_all(converter_of(instance_of(coded), coded))
    assert visited == list(VISITS)


async def test_ops_8_a_first_activation_and_another_workers_instance_are_visited(visited):
    await visit_all(pydantic_data_converter)
    await visit_all(converter_of(object(), pydantic_data_converter))
    assert visited == [*VISITS, *VISITS]


def test_ops_8_a_release_of_the_sdk_without_these_functions_is_noticed_at_the_start(monkeypatch):
    monkeypatch.delattr(sdk, VISITS[0])
    with pytest.raises(RuntimeError, match="has no decode_activation"):
        spare_needless_visits()
