"""Private parts of the SDK: used where they are, and done without where they are not (OPS-8, OPS-10, OPS-12)."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.bridge import worker as sdk
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec, WorkflowSerializationContext
from temporalio.converter._extstore import StorageOperationMetrics
from temporalio.worker._workflow import _CommandAwareDataConverter

from tests.harness import environment
from tests.waiting import until
from turnkeeper.workflows import hosting
from turnkeeper.workflows.hosting import USES, VISITS, Use, mark_visits, spare_needless_visits

EVERY_NAME = [name for use in USES for name in use.names]


@pytest.mark.parametrize("name", EVERY_NAME)
def test_ops_12_the_installed_sdk_has_every_private_name_that_we_use(name: str) -> None:
    assert Use((name,), "").missing() == []
    assert Use((f"{name}_of_tomorrow",), "").missing() == [f"{name}_of_tomorrow"]
    assert Use((name.replace(":", "_of_tomorrow:"),), "").missing() != []


@pytest.mark.parametrize(
    "missing", [[use] for use in USES] + [list(USES)], ids=["evict", "deadlock", "stop", "visits", "all"]
)
async def test_ops_12_a_worker_without_a_private_part_logs_it_and_answers_prompts(
    temporal: Client, missing: list[Use], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in VISITS:
        monkeypatch.setattr(sdk, name, getattr(getattr(sdk, name), "_visit", getattr(sdk, name)))
    removed = {name for use in missing for name in use.names}
    exists = hosting._exists
    monkeypatch.setattr(hosting, "_exists", lambda name: name not in removed and exists(name))
    async with environment(temporal) as env:
        session = await env.start()
        await session.prompt(id="m1", text="hi")
        await session.idle(turns=1)
        await session.prompt(id="m2", text="and again")
        await session.idle(turns=2)
        state = await session.state()
    assert [turn.status for turn in state.messages] == ["completed", "completed"]
    lines = [line for line in caplog.messages if line.startswith("temporalio ")]
    assert [use for use in USES if any(use.without in line for line in lines)] == [
        use for use in USES if use in missing
    ]
    assert all(any(name in line for line in lines) for name in removed)


async def test_ops_10_a_slow_task_is_not_a_deadlock_before_its_own_timeout(temporal: Client) -> None:
    async with environment(temporal, task_timeout=7) as env:
        assert env.worker._workflow_worker is not None
        assert env.worker._workflow_worker._deadlock_timeout_seconds == 7
    async with environment(temporal, task_timeout=1) as env:
        assert env.worker._workflow_worker is not None
        assert env.worker._workflow_worker._deadlock_timeout_seconds == 2


async def test_api_3_a_session_stays_in_memory_after_it_rejects_an_update(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, has_completed = list[bool](), hosting._has_completed

    async def recorded(*arguments: Any) -> bool:
        checks.append(await has_completed(*arguments))
        return checks[-1]

    monkeypatch.setattr(hosting, "_has_completed", recorded)
    async with environment(temporal) as env:
        session = await env.start()
        await session.prompt("hi")
        await session.idle(turns=1)
        await session.state()
        await until(lambda: checks)
        checks.clear()
        with pytest.raises(WorkflowUpdateFailedError):
            await session.handle.execute_update("cancel_turn", {})
        await session.state()
        await until(lambda: checks)
        assert checks == [True]


# Visits of payloads


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


def instance_of(converter: DataConverter) -> Any:
    instance: Any = SimpleNamespace()
    mark_visits(instance, converter)
    return instance


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
