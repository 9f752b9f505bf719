"""Requests that vendors get after a turn without an answer, after a retry and after an eviction: CTX-17."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.harness import Environment
from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.chat_wire import ChatWire
from tests.vendors.responses_wire import ResponsesWire
from tests.vendors.utterances import UTTERANCES, Utterance
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.testing.vendor_server import Answer, Call, VendorServer

MAKERS: dict[str, Callable[[], VendorServer]] = {
    "anthropic": AnthropicWire,
    "responses": ResponsesWire,
    "chat": ChatWire,
    "text": lambda: ChatWire("text"),
}
SILENCE = Answer(text="never")
LOOK = Answer(calls=[Call("c1", "look", {})])


class Api:
    """An API on loopback, the vendor of all models of the environment."""

    def __init__(self, name: str, wire: VendorServer) -> None:
        self._name = name
        self.wire = wire

    def script(self, *answers: Answer) -> None:
        silent = self.wire.reply(SILENCE).silent_after(0)
        self.wire.script(*(silent if answer is SILENCE else answer for answer in answers))

    async def until_asked(self, count: int) -> None:
        await self.wire.server.until(lambda: len(self.wire.requests) >= count)

    @property
    def utterances(self) -> list[Utterance]:
        """The newest request."""
        return list(UTTERANCES[self._name](self.wire.requests[-1].body))


@pytest.fixture(params=MAKERS)
async def api(request: pytest.FixtureRequest, env: Environment, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    async with MAKERS[request.param]() as wire:
        provider, name = wire.provider(), wire.model.partition(":")[2]
        monkeypatch.setattr(env.vendor, "resolve", lambda model: (provider, name))
        yield Api(request.param, wire)


async def test_ctx_17_a_stopped_turn_has_a_note_of_who_stopped_it_and_why(env: Environment, api: Api) -> None:
    api.script(SILENCE, Answer(text="Paris."))
    session = await env.start(SessionInput(model=api.wire.model))
    await session.prompt(id="p1", text="Delete all my files now.")
    await api.until_asked(1)
    stop = {"message_id": "p1", "reason": 'I did not "mean" it', "stopped_by": "ann"}
    assert await session.update("cancel_turn", stop) == {"cancelling": True}
    await session.prompt("What is the capital of France?")
    turns = await session.idle(turns=2)
    assert turns[0].stop is not None
    assert (turns[0].stop.by, turns[0].error) == ("ann", 'Cancelled: I did not "mean" it')
    assert api.utterances == [
        ("user", "Delete all my files now."),
        ("assistant", r'[Stopped by ann: "I did not \"mean\" it". Nothing was done.]'),
        ("user", "What is the capital of France?"),
    ]


async def test_ctx_17_an_interrupted_turn_has_a_note_before_the_prompt(env: Environment, api: Api) -> None:
    api.script(SILENCE, Answer(text="Done."))
    session = await env.start(SessionInput(model=api.wire.model))
    await session.prompt(id="p1", text="Send the mail to everybody.")
    await api.until_asked(1)
    await session.prompt(id="p2", text="No wait, only to Ann!", mode="interrupt")
    await session.idle(turns=2)
    assert api.utterances == [
        ("user", "Send the mail to everybody."),
        ("assistant", "[Interrupted by a new prompt. Nothing was done.]"),
        ("user", "No wait, only to Ann!"),
    ]


async def test_ctx_17_a_turn_out_of_steps_has_a_note_and_its_retry_replaces_it(env: Environment, api: Api) -> None:
    api.script(Answer(text="Hello!"), LOOK, Answer(text="Why?"), LOOK, Answer(text="Paid."))
    session = await env.start(SessionInput(model=api.wire.model))
    await session.prompt("Hi")
    await session.idle(turns=1)
    await session.update("configure", {"limits": {"max_steps": 1}})
    await session.prompt(id="p2", text="Pay 500 euros.")
    await session.idle(turns=2)
    note = "[Failed: it ran out of steps. Tools were called before: look.]"
    await session.prompt(id="p3", text="And?")
    await session.idle(turns=3)
    assert api.utterances[-2:] == [("assistant", note), ("user", "And?")]

    await session.prompt(id="p4", text="Pay 900 euros.")
    await session.idle(turns=4)
    await session.prompt(id="p5", text="Pay 900 euros.", retries="p4")
    turns = await session.idle(turns=5)
    assert turns[-1].retries == "p4"
    texts = [text for _, text in api.utterances]
    assert sum("Pay 900 euros." in text for text in texts) == 1
    assert api.utterances[-1] == ("user", "Pay 900 euros.")
    assert f"[An earlier try at the next request. {note[1:]}" in texts[-2], "or it would pay twice"
    view = await session.context()
    assert [turn.seen for turn in view.turns] == ["verbatim", "verbatim", "verbatim", "retried", "verbatim"]


async def test_ctx_17_a_retry_of_a_turn_that_did_nothing_leaves_no_trace(env: Environment, api: Api) -> None:
    api.script(SILENCE, SILENCE, Answer(text="Paid."))
    session = await env.start(SessionInput(model=api.wire.model))
    for number, retries in ((1, None), (2, "p1")):
        await session.prompt(id=f"p{number}", text="Pay 500 euros.", retries=retries)
        await api.until_asked(number)
        await session.update("cancel_turn", {"message_id": f"p{number}"})
        await session.idle(turns=number)
    await session.prompt(id="p3", text="Pay 500 euros.", retries="p2")
    await session.idle(turns=3)
    assert api.utterances == [("user", "Pay 500 euros.")]


@pytest.mark.parametrize(
    ("max_messages", "behind_head"),
    [
        (14, ("Transferred.", "[1 earlier turn is left out here.]")),
        (12, ("[Answered; the answer is left out here. 1 earlier turn is left out here.]",)),
    ],
    ids=["with_room_for_the_answer", "without"],
)
async def test_ctx_17_an_eviction_leaves_one_note_after_an_answered_head(
    env: Environment, api: Api, max_messages: int, behind_head: tuple[str, ...]
) -> None:
    calls = 8
    api.script(Answer(text="Transferred."), Answer(text="Welcome."), *[LOOK] * calls, Answer(text="Seen."))
    history = {"max_messages": max_messages, "preserve_last_n": 2, "evict_block": 4}
    session = await env.start(SessionInput.model_validate({"model": api.wire.model, "history": history}))
    prompts = ["Transfer 500 euros to account 4711 now.", "Thanks.", "Look at every file."]
    for number, prompt in enumerate(prompts, start=1):
        await session.prompt(prompt)
        await session.idle(turns=number)
    texts = [(role, text) for role, text in api.utterances if role in ("user", "assistant")]
    assert texts[0] == ("user", prompts[0])
    behind = "\n".join(text for _, text in texts[1:-2])
    assert tuple(behind.replace("\n\n", "\n").split("\n")) == behind_head  # some wires join neighbours of one role
    assert texts[-2] == ("user", prompts[2])
    assert texts[-1][0] == "assistant"
    assert texts[-1][1].endswith("steps of this turn are left out here.]")
