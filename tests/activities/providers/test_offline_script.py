"""The scripted model and the registry: what is played when, and what is said where nothing can be (AGT-4)."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turnkeeper.activities.call_model import IndexNotes, ModelActivities
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.list_prices import ListPrices
from turnkeeper.activities.model_client import REQUESTS, CacheKey, ModelClient
from turnkeeper.activities.providers.offline.provider import ABILITIES, OfflineModel, OfflineProvider, ScriptedModel
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider, ProviderRegistry
from turnkeeper.activities.tools import QuickReader
from turnkeeper.models.context.model_view import digest_of
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelCall,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RequestHead,
)
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.partials.factory import InProcessCarrier


@dataclass
class Player:
    """A folder of scripts and the model that plays them."""

    folder: Path

    def __post_init__(self) -> None:
        self.model: Provider = ScriptedModel(self.folder)

    def write(self, *responses: dict[str, Any], name: str = "default", **script: Any) -> None:
        """Write the script `name`."""
        (self.folder / f"{name}.json").write_text(json.dumps({"responses": responses, **script}), encoding="utf-8")

    async def play(
        self,
        request: int = 1,
        *,
        attempt: int = 1,
        waits: int = 0,
        name: str = "script",
        prompt: str = "hi",
        partial_events: list[Delta | ModelResponse] | None = None,
    ) -> list[Delta | ModelResponse]:
        """Return everything that is streamed; `partial_events` also has what came before an error."""
        events = [] if partial_events is None else partial_events
        messages = [ModelMessage(role="user", content=prompt)]
        context = CallInfo(session_id="s", request=request, attempt=attempt, waits=waits)
        async for event in self.model.stream(name, ModelRequest(head=RequestHead(), messages=messages), context):
            events.append(event)  # one by one: an error must not take what came before it
        return events

    async def response(self, request: int = 1, **options: Any) -> ModelResponse:
        """Return the whole response that ends the stream."""
        last = (await self.play(request, **options))[-1]
        assert isinstance(last, ModelResponse)
        return last

    async def error(self, request: int = 1, **options: Any) -> ModelError:
        """Return the error that ends the stream."""
        with pytest.raises(ModelError) as raised:
            await self.play(request, **options)
        return raised.value


@pytest.fixture
def player(tmp_path: Path) -> Player:
    return Player(tmp_path)


# ---- what is played


async def test_agt_4_a_script_plays_the_response_with_the_number_of_the_request(player: Player) -> None:
    player.write({"text": "one"}, {"text": "two"})
    assert [(await player.response(number)).text for number in (2, 1, 2)] == ["two", "one", "two"]


async def test_agt_4_after_its_last_response_a_script_fails_or_repeats(player: Player) -> None:
    player.write({"text": "one"}, {"text": "two"})
    error = await player.error(3)
    assert (error.error_type, error.message) == ("bad_request", "the script 'default.json' is at its end after 2")
    player.write({"text": "one"}, {"text": "two"}, repeat=True)
    assert (await player.response(3)).text == "one"


async def test_agt_4_a_scripted_response_has_thinking_text_and_calls_in_this_order(player: Player) -> None:
    calls = [{"name": "look", "args": {"n": 1}}, {"name": "pay", "args": "{broken", "id": "mine"}]
    player.write({"think": "hm", "text": "Let me see.", "calls": calls})
    response = await player.response()
    assert [part.kind for part in response.parts] == ["think", "respond", "call", "call"]
    assert response.calls == [
        CallPart(kind="call", id="call_1_0", name="look", args={"n": 1}),
        CallPart(kind="call", id="mine", name="pay", args="{broken"),
    ]
    assert (response.stop, response.request_id) == ("tool_calls", "offline_1")


async def test_agt_4_a_scripted_response_is_streamed_word_by_word(player: Player) -> None:
    player.write({"think": "a b", "text": "c  d\n", "calls": [{"name": "look"}]})
    *deltas, response = await player.play()
    assert deltas == [
        Delta("think", "a "),
        Delta("think", "b"),
        Delta("respond", "c  "),
        Delta("respond", "d\n"),
        Delta("call", "look"),
    ]
    assert isinstance(response, ModelResponse)


async def test_agt_4_placeholders_are_filled_in_and_other_braces_stay(player: Player) -> None:
    player.write({"think": "{request}", "text": '{"n": {request}} {last_user} {0} {'}, repeat=True)
    response = await player.response(7, prompt="{request}?")
    assert (response.thinking, response.text) == ("7", '{"n": 7} {request}? {0} {')


async def test_agt_4_scripted_delays_apply_before_the_answer_and_after_each_piece(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    player.write({"text": "a b", "delay": 30, "chunk_delay": 2})
    monkeypatch.setattr(asyncio, "sleep", wait)
    await player.play()
    assert waits == [30, 2, 2]


# ---- what goes wrong on purpose


async def test_agt_9_a_scripted_fault_fails_the_first_attempts_only(player: Player) -> None:
    player.write({"text": "a", "fault": {"error_type": "overloaded", "times": 2, "message": "busy", "retry_after": 7}})
    for attempt in (1, 2):
        error = await player.error(attempt=attempt)
        assert (error.error_type, error.message, error.retry_after) == ("overloaded", "busy", 7)
    assert (await player.response(attempt=3)).text == "a"


async def test_agt_9_retries_by_the_workflow_count_towards_a_scripted_fault(player: Player) -> None:
    player.write({"text": "a", "fault": {"error_type": "rate_limited", "times": 2, "retry_after": 60}})
    for waits in (0, 1):
        assert (await player.error(attempt=1, waits=waits)).error_type == "rate_limited"
    assert (await player.response(attempt=1, waits=2)).text == "a"


async def test_agt_9_the_activity_passes_the_number_of_workflow_retries_to_the_script(player: Player) -> None:
    player.write({"text": "a", "fault": {"error_type": "rate_limited", "retry_after": 60}})
    request = ModelRequest(head=RequestHead(), messages=[])
    call = ModelCall(turn=1, step=1, request=1, model="offline:script", digest=digest_of(request))
    activity = ActivityEnvironment()
    key = CacheKey(activity.info.workflow_run_id or "", call.request, call.digest)
    REQUESTS.put(key, request, size=1)
    providers, texts = ProviderRegistry({"offline": lambda: player.model}), LargeTexts(Mock(spec=Blobs))
    asking = ModelClient(providers, Mock(spec=Client), texts, ListPrices())
    call_model = ModelActivities(
        asking, texts, InProcessCarrier(), IndexNotes(cast("Any", None)), QuickReader(cast("Any", None), texts)
    ).call_model
    assert (await activity.run(call_model, call)).wait_seconds == 60
    outcome = await activity.run(call_model, call.model_copy(update={"round": 1}))
    assert outcome.response.text == "a"
    REQUESTS.discard(key)


@pytest.mark.parametrize(("after_chunks", "expected"), [(0, ""), (2, "a b "), (9, "a b c")])
async def test_agt_9_a_scripted_fault_can_occur_in_the_middle_of_the_answer(
    player: Player, after_chunks: int, expected: str
) -> None:
    player.write({"text": "a b c", "fault": {"error_type": "connection", "after_chunks": after_chunks}})
    events: list[Delta | ModelResponse] = []
    with pytest.raises(ModelError, match="the script says so"):
        await player.play(partial_events=events)
    assert "".join(delta.text for delta in events if isinstance(delta, Delta)) == expected
    assert (await player.response(attempt=2)).text == "a b c"


async def test_agt_3_a_scripted_cut_ends_the_stream_without_a_final_event(player: Player) -> None:
    player.write({"text": "a b", "cut": True})
    assert await player.play() == [Delta("respond", "a "), Delta("respond", "b")]


# ---- the files


async def test_agt_4_the_model_name_selects_the_script_and_a_missing_one_is_not_found(player: Player) -> None:
    player.write({"text": "the default"})
    player.write({"text": "the demo"}, name="demo_2")
    assert (await player.response(name="script")).text == "the default"
    assert (await player.response(name="script/demo_2")).text == "the demo"
    error = await player.error(name="script/other")
    assert error.error_type == "not_found"
    assert "offline script 'other'" in error.message


@pytest.mark.parametrize("name", ["script/", "script/../x", "script/a/b", "script/a.json", "script/" + "x" * 65])
async def test_agt_4_a_script_name_cannot_reach_other_files(player: Player, name: str) -> None:
    error = await player.error(name=name)
    assert error.error_type == "bad_request"
    assert repr(name) in error.message


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"{", "value"),
        (b"\xff", "value"),
        (b"{}", "responses"),
        (b'{"responses": []}', "responses"),
        (b'{"responses": [{"text": 1}]}', "responses[0].text"),
        (b'{"responses": [{"txt": "a"}]}', "responses[0].txt"),
        (b'{"responses": [{"delay": -1}]}', "responses[0].delay"),
        (b'{"responses": [{"fault": {"error_type": "bad luck"}}]}', "responses[0].fault.error_type"),
    ],
)
async def test_agt_4_a_malformed_script_is_a_bad_request_that_names_file_and_field(
    player: Player, content: bytes, field: str
) -> None:
    (player.folder / "default.json").write_bytes(content)
    error = await player.error()
    assert error.error_type == "bad_request"
    assert f"the script 'default.json' is malformed: {field}: " in error.message


async def test_agt_4_an_unreadable_script_is_a_bad_request(player: Player) -> None:
    (player.folder / "default.json").mkdir()
    error = await player.error()
    assert (error.error_type, "'default.json' cannot be read" in error.message) == ("bad_request", True)


async def test_agt_4_a_script_is_reloaded_only_when_its_file_changed(player: Player) -> None:
    script = player.folder / "default.json"
    player.write({"text": "one"})
    os.utime(script, ns=(0, 1_000))
    assert (await player.response()).text == "one"
    player.write({"text": "two"})
    os.utime(script, ns=(0, 1_000))
    assert (await player.response()).text == "one"
    os.utime(script, ns=(0, 2_000))
    assert (await player.response()).text == "two"


async def test_agt_4_an_unchanged_script_is_played_without_a_thread_switch(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []
    to_thread = asyncio.to_thread

    async def usage_so_far(read: Any, *args: Any) -> Any:
        reads.append(args)
        return await to_thread(read, *args)

    monkeypatch.setattr(asyncio, "to_thread", usage_so_far)
    script = player.folder / "default.json"
    player.write({"text": "a"}, repeat=True)
    os.utime(script, ns=(0, 1_000))
    for request in (1, 2, 3):
        await player.response(request)
    assert reads == [(script,)]
    script.unlink()
    assert (await player.error()).error_type == "not_found"


# ---- the registry


async def test_agt_4_the_offline_provider_has_one_model_and_the_scripts(player: Player) -> None:
    player.write({"text": "played"})
    player.model = OfflineProvider(OfflineModel(), player.model)
    assert (await player.response(name="script")).text == "played"
    assert (await player.response(name="")).text == ABILITIES
    for unknown in ("gpt", "scripted"):
        error = await player.error(name=unknown)
        assert (error.error_type, repr(unknown) in error.message) == ("not_found", True)


def test_agt_4_a_provider_is_created_once_on_first_use() -> None:
    instances: list[Provider] = []

    def make() -> Provider:
        instances.append(OfflineModel())
        return instances[-1]

    providers = ProviderRegistry({"offline": make})
    assert instances == []
    assert providers.resolve("offline:script/a:b") == (*instances, "script/a:b")
    assert providers.resolve("offline:") == (*instances, "")
    assert len(instances) == 1


@pytest.mark.parametrize("model", ["", "offline", ":x", "openai:gpt"])
def test_agt_4_an_unknown_provider_is_a_bad_request_that_lists_the_providers(model: str) -> None:
    with pytest.raises(ModelError) as raised:
        ProviderRegistry({"offline": OfflineModel, "mine": OfflineModel}).resolve(model)
    assert raised.value.error_type == "bad_request"
    assert repr(model) in raised.value.message
    assert "mine, offline" in raised.value.message
