"""The usage of an answer before it is whole, as each API reports it: AGT-9."""

from contextlib import aclosing
from typing import Any

import pytest

from tests.vendors.apis import WIRES
from tests.vendors.server import Answer, Call, Reply
from turnkeeper.activities.providers.protocol import CallInfo, Meter, ModelError
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, RequestHead
from turnkeeper.models.transcript.trajectory import Usage

REQUEST = ModelRequest(head=RequestHead(), messages=[ModelMessage(role="user", content="What is there?")])
LONG = Answer(think="Where? " * 20, text="There is a chair. " * 50, input=300, cached=200, output=250)


async def failed(wire: Any, reply: Reply) -> Meter:
    """Return the meter of a request that is answered by `reply`, and fails."""
    wire.refuse_always(reply)
    meter = Meter()
    info = CallInfo(session_id="s", request=1, attempt=1, meter=meter)
    async with aclosing(wire.provider(silence_timeout=0.5).stream("claude-x", REQUEST, info)) as answer:
        with pytest.raises(ModelError):
            [_ async for _ in answer]
    return meter


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_broken_off_answer_is_metered_by_what_was_read_and_written(api: str) -> None:
    async with WIRES[api]() as wire:
        whole = wire.reply(LONG)
        meter = await failed(wire, whole.cut_after(len(whole.chunks) * 2 // 3))
    usage = meter.usage(input_tokens=77)
    assert usage is not None
    # Anthropic counts the input at the beginning; the others say nothing before the end.
    assert usage.input_tokens == (300 if api == "anthropic" else 77)
    assert usage.cached_tokens == (200 if api == "anthropic" else 0)
    assert usage.estimated_tokens == usage.output_tokens + (0 if api == "anthropic" else 77)


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_broken_off_call_is_metered_by_its_arguments(api: str) -> None:
    async with WIRES[api]() as wire:
        whole = wire.reply(Answer(calls=[Call("c1", "look", {"at": "x" * 400})]))
        meters = [await failed(wire, whole.cut_after(chunks)) for chunks in range(1, len(whole.chunks) - 1)]
    assert any(meter.written_chars > 200 for meter in meters)


@pytest.mark.parametrize("api", WIRES)
@pytest.mark.parametrize("fault", ["rate_limited", "overloaded", "bad_request", "auth"])
async def test_agt_9_a_rejected_request_costs_nothing(api: str, fault: Any) -> None:
    async with WIRES[api]() as wire:
        meter = await failed(wire, wire.fault(fault))
    assert meter.usage(input_tokens=77) is None


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_refusal_costs_the_tokens_that_the_vendor_reports(api: str) -> None:
    async with WIRES[api]() as wire:
        meter = await failed(wire, wire.reply(Answer(text="I won't.", stop="refusal", input=300, output=9)))
    usage = meter.usage(input_tokens=77)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.estimated_tokens) == (300, 9, 0)


def test_agt_9_estimated_tokens_are_counted_separately() -> None:
    usage_so_far, estimated = Usage(input_tokens=10, output_tokens=5), Usage(input_tokens=8, estimated_tokens=8)
    assert usage_so_far + estimated == Usage(input_tokens=18, output_tokens=5, estimated_tokens=8)
