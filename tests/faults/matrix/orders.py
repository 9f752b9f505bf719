"""Rows of what happens in a turn: whatever does, the next request is one that the vendor takes (L2, L5, L6, F4)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

from tests.faults.matrix.playing import IMAGE, Row, RowSession, is_answered
from tests.vendors.flavours.flavours import FLAVOURS
from tests.vendors.flavours.rules import Body, Issued, Violation
from turnkeeper.testing.vendor_server import Answer, Call, Reply

Story = Callable[[RowSession], Awaitable[None]]


async def takes_two_turns(run: RowSession) -> None:
    assert is_answered(await run.turn("next", ["look"])), run.turns[-1].error
    assert is_answered(await run.turn("after")), run.turns[-1].error


def hold(run: RowSession, *, at: int) -> asyncio.Event:
    """Hold the answer to the n-th request back until the event is set."""
    gate = asyncio.Event()

    def override(body: Body, number: int) -> Reply | None:
        if number != at:
            return None
        return run.line.render(Answer(text="A late answer."), body).behind(gate)

    run.line.override, run.line.overridden = override, 0
    return gate


def stopped(*steps: list[str], at: int, **fields: str) -> Story:
    """A turn that is stopped while its n-th model call is answered; `fields` are further ones of the stop."""

    async def story(run: RowSession) -> None:
        hold(run, at=at)
        await run.begin("p1", *steps)
        await run.until_overridden(at + 1)
        await run.session.update("cancel_turn", {"message_id": "p1", **fields})
        await run.ended("p1")
        run.line.override = None
        await takes_two_turns(run)

    return story


stopped_behind_tools = stopped(["look", "pay"], ["look"], at=1, reason="I did not mean it.")


async def interrupted(run: RowSession) -> None:
    hold(run, at=1)
    await run.begin("p1", ["look"])
    await run.until_overridden(2)
    run.line.override = None
    assert is_answered(await run.turn("p2", ["look"], mode="interrupt")), run.turns[-1].error
    await takes_two_turns(run)


async def steered(run: RowSession) -> None:
    gate = hold(run, at=1)
    await run.begin("p1", ["look"], ["look"])
    await run.until_overridden(2)
    await run.begin("p2", ["look"], mode="steer")
    gate.set()
    run.line.override = None
    await run.session.until(lambda state: state.status == "idle" and not state.queue_length, turns=2)
    await takes_two_turns(run)


async def failed_behind_tools(run: RowSession) -> None:
    def refuse(body: Body, issued: Issued) -> Violation | None:
        return Violation("row", "No credit is left on this account: insufficient_quota", status=402)

    def after_tools(body: Body, number: int) -> Reply | None:
        if number == 0:
            run.line.refuse = refuse
        return None

    run.line.override = after_tools
    turn = await run.turn("p1", ["look", "pay"])
    assert turn.error_type == "quota", turn.error
    run.line.refuse = run.line.override = None
    await takes_two_turns(run)


async def retried_behind_tools(run: RowSession) -> None:
    await failed_behind_tools(run)
    run.turns.clear()
    await run.begin("p9", ["look"], retries="p1")
    assert is_answered(await run.ended("p9")), run.turns[-1].error


async def out_of_steps(run: RowSession) -> None:
    turn = await run.turn("p1", ["look"], ["look"], ["look"], ["look"])
    assert "limits.max_steps" in (turn.error or ""), turn.error
    assert is_answered(await run.turn("next")), run.turns[-1].error
    assert is_answered(await run.turn("after")), run.turns[-1].error


def answered(
    *answers: Answer | None, steps: Sequence[list[str]] = (), error_types: Collection[str | None] = ()
) -> Story:
    """A turn whose first model calls get these answers, `None`: the usual one; empty `error_types`: any end will do."""

    async def story(run: RowSession) -> None:
        run.line.override = lambda body, number: answers[number] if number < len(answers) else None
        turn = await run.turn("p1", *steps)
        assert not error_types or turn.error_type in error_types, turn.error
        run.line.override = None
        await takes_two_turns(run)

    return story


def ended_by(answer: Answer, *error_types: str | None) -> Story:
    """A turn whose second answer, and a repetition of it, ends in another way."""
    return answered(None, answer, answer, steps=[["look"]], error_types=error_types)


def with_calls(text: str, calls: Iterable[tuple[str, object]]) -> Answer:
    return Answer(text=text, calls=[Call(f"c{index}", name, args) for index, (name, args) in enumerate(calls)])


def from_vendor(flavour: str) -> Story:
    """A turn with tools at another vendor before, and one after."""

    async def story(run: RowSession) -> None:
        target = run.line.model_flavour
        await run.switch(flavour)
        assert is_answered(await run.turn("p1", ["look", "pay"], ["look"])), run.turns[-1].error
        await run.switch(target)
        assert is_answered(await run.turn("p2", ["look"], ["pay"])), run.turns[-1].error
        await run.switch(flavour)
        assert is_answered(await run.turn("p3", ["look"])), run.turns[-1].error
        await run.switch(target)
        await takes_two_turns(run)

    return story


async def switched_in_a_turn(run: RowSession) -> None:
    """Stopped behind tools at Anthropic, the conversation continues here."""
    target = run.line.model_flavour
    await run.switch("anthropic")
    run.line.model_flavour = "anthropic"
    await stopped_behind_tools(run)
    run.line.model_flavour = target
    await run.switch(target)
    run.turns.clear()
    assert is_answered(await run.turn("p7", ["look"], ["look"])), run.turns[-1].error
    assert is_answered(await run.turn("p8")), run.turns[-1].error


async def many_steps_in_a_small_window(run: RowSession) -> None:
    assert is_answered(await run.turn("p1", *([["look"]] * 14))), run.turns[-1].error
    assert is_answered(await run.turn("p2", *([["look", "pay"]] * 8))), run.turns[-1].error
    await takes_two_turns(run)


async def many_turns_in_a_small_window(run: RowSession) -> None:
    for number in range(8):
        assert is_answered(await run.turn(f"p{number}", ["look"])), run.turns[-1].error
    await takes_two_turns(run)


async def images_of_tools(run: RowSession) -> None:
    assert is_answered(await run.turn("p1", ["photo", "look"], ["photo"], attachments=[IMAGE])), run.turns[-1].error
    assert is_answered(await run.turn("p2", ["photo"])), run.turns[-1].error
    await takes_two_turns(run)


async def denied(run: RowSession) -> None:
    await run.begin("p1", ["look", "pay"])
    for pending in await run.session.awaited_approvals(2):
        await run.session.decide(pending, "reject", reason="Not now.")
    assert is_answered(await run.ended("p1")), run.turns[-1].error
    await run.session.update("configure", {"tool_policy": {"*": "allow"}})
    await takes_two_turns(run)


async def many_calls(run: RowSession) -> None:
    assert is_answered(await run.turn("p1", ["look"] * 20, ["pay"] * 5)), run.turns[-1].error
    await takes_two_turns(run)


broken_arguments = answered(with_calls("I look.", (("look", args) for args in ('{"at": "left', "[1]", "", "not json"))))
unknown_tools = answered(with_calls(" ", ((name, {}) for name in ("nothing", "a b/c", "x" * 90, "ü"))))
blank_texts = answered(*(Answer(text="\n\n", think="  ", calls=[Call(f"c{n}", "look", {})]) for n in range(2)))

SMALL = {"max_messages": 10, "preserve_first_n": 1, "preserve_last_n": 4, "evict_block": 4}

STORIES: dict[str, tuple[Story, dict[str, object]]] = {
    "stopped behind tools": (stopped_behind_tools, {}),
    "stopped before a word": (stopped(["look"], at=0), {}),
    "interrupted": (interrupted, {}),
    "steered": (steered, {}),
    "failed behind tools": (failed_behind_tools, {}),
    "retried behind tools": (retried_behind_tools, {}),
    "out of steps": (out_of_steps, {"limits": {"max_steps": 3}}),
    "refused by the model": (ended_by(Answer(text="I can't", stop="refusal"), "refusal"), {}),
    "cut by its length": (ended_by(Answer(text="It is", stop="max_tokens"), "too_large"), {}),
    "empty twice": (ended_by(Answer(), "provider_error"), {}),
    "only thinking": (ended_by(Answer(think="It is noon."), None, "provider_error"), {}),
    **{f"from {name}": (from_vendor(name), {}) for name in ("anthropic", "openai", "gemini", "deepseek")},
    "switched in a turn": (switched_in_a_turn, {}),
    "many steps, small window": (many_steps_in_a_small_window, {"history": SMALL}),
    "many turns, small window": (many_turns_in_a_small_window, {"history": SMALL}),
    "with summaries": (many_turns_in_a_small_window, {"history": {**SMALL, "summarize_on_trim": True}}),
    "images of tools": (images_of_tools, {}),
    "denied": (denied, {"tool_policy": {"*": "ask"}}),
    "many calls": (many_calls, {}),
    "broken arguments": (broken_arguments, {}),
    "unknown tools": (unknown_tools, {}),
    "blank texts": (blank_texts, {}),
}


def rows() -> Iterator[Row]:
    for flavour in FLAVOURS:
        for name, (story, config) in STORIES.items():
            yield Row(name, flavour, _checked(story, flavour), config=dict(config))


LEARNED = {
    "mistral": {"parameter stream_options"},
    "groq": {"field reasoning"},
    "deepseek": {"missing reasoning_content", "media"},
    "openai-chat": {"field reasoning_content", "max_tokens"},
    "anthropic-compatible": {"thinking", "bound", "cache_control", "file"},
    "llama.cpp": {"file"},
    "ollama": {"file"},
}
"""Rules of a vendor that can only be learned, since others require the opposite."""


def _checked(story: Story, flavour: str) -> Story:
    """Add to a story that no request was refused but for what can only be learned."""

    async def play(run: RowSession) -> None:
        run.line.model_flavour = flavour
        await story(run)
        refused = [
            (exchange.flavour, exchange.violation.rule, exchange.violation.words)
            for exchange in run.line.refused
            if exchange.violation
            and exchange.violation.rule != "row"
            and exchange.violation.rule not in LEARNED.get(exchange.flavour, ())
        ]
        assert not refused, f"refused: {refused}"

    return play
