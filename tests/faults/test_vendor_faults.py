"""Every fault of every API, at either call of a turn: AGT-9, AGT-11, AGT-3, SES-10.

A turn has two model calls with a tool between them. One of the two meets a fault. Whatever happens, the tool has run
once, no half answer is taken for one, and the vendor was asked exactly as often as AGT-9 allows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import pytest
from temporalio.client import Client

from tests.harness import DrivenSession, Environment, environment, wait_in_workflow_beyond
from tests.vendors import chat_wire, responses_wire
from tests.vendors.apis import WIRES
from tests.vendors.server import Answer, Call, Fault, Reply, VendorWire
from tests.waiting import until
from turnkeeper.activities.providers.registry import ProviderRegistry
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.model_name import split_model
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ConversationMessage

AT_ONCE = {"retry-after-ms": "1"}
NOT_AGAIN = {"x-should-retry": "false"}
ONE_MINUTE = {"turn_timeout": 60}
HALF = "This is"

CALL = Answer(think="I look.", text="I look it up.", calls=[Call("c1", "look", {"at": "it"})])
ANSWER = Answer(text="This is the whole answer, from its first word to its last.")


def past_date() -> str:
    return format_datetime(datetime.now(UTC) - timedelta(minutes=1), usegmt=True)


@dataclass(frozen=True)
class Trouble:
    """What one model call meets: `replies`, made of the answer it would have had, in `requests` requests.

    The turn ends with `error_type`, or well without.
    """

    name: str
    replies: Callable[[VendorWire, Reply], list[Reply]]
    requests: int
    error_type: ErrorType | None = None

    def __str__(self) -> str:
        return self.name


def refuses(fault: Fault, headers: dict[str, str] | None = None, *, times: int = 1) -> Callable[..., list[Reply]]:
    return lambda wire, whole: [wire.fault(fault, headers)] * times


def answers(answer: Answer) -> Callable[..., list[Reply]]:
    return lambda wire, whole: [wire.reply(answer)]


def passing(name: str, fault: Fault, headers: dict[str, str]) -> Trouble:
    return Trouble(name, refuses(fault, headers), requests=2)


def lasting(fault: Fault, error_type: ErrorType, *, requests: int = 1) -> Trouble:
    return Trouble(f"{fault} that lasts", refuses(fault, times=requests), requests=requests, error_type=error_type)


def broken(name: str, make: Callable[[VendorWire, Reply], Reply]) -> Trouble:
    """An answer that is broken the first time and complete the second time."""
    return Trouble(name, lambda wire, whole: [make(wire, whole)], requests=2)


def endless(beginning: bytes, status: int) -> Callable[..., list[Reply]]:
    """A reply of twelve megabytes after this beginning."""
    return lambda wire, whole: [Reply(chunks=(beginning, *[b"x" * 65_536] * 190), status=status)]


def outage(wire: VendorWire, whole: Reply) -> list[Reply]:
    """Four failures that pass at once, and one that lasts longer than the turn may."""
    return [*[wire.fault("overloaded", AT_ONCE)] * 4, wire.fault("overloaded", {"retry-after": "90"})]


MIDDLE = 3
"""After this number of chunks every API has begun its answer, and none has ended it."""

TROUBLES = [
    passing("a rate limit with retry-after in milliseconds", "rate_limited", AT_ONCE),
    passing("a rate limit with retry-after in seconds", "rate_limited", {"retry-after": "0"}),
    passing("a rate limit with retry-after in parts of a second", "rate_limited", {"retry-after": "0.05"}),
    passing("a rate limit with retry-after as a date", "rate_limited", {"retry-after": past_date()}),
    passing("a rate limit with a retry-after that is none", "rate_limited", {"retry-after": "soon"}),
    passing("a rate limit that names its end alone", "rate_limited", {"x-ratelimit-reset-requests": "1ms"}),
    passing("overloaded", "overloaded", AT_ONCE),
    passing("an internal error", "provider_error", AT_ONCE),
    passing("a bad request that is worth another try", "bad_request", {"x-should-retry": "true", **AT_ONCE}),
    Trouble("an internal error that is not", refuses("provider_error", NOT_AGAIN), 1, "provider_error"),
    lasting("auth", "auth"),
    lasting("permission", "auth"),
    lasting("quota", "quota"),
    lasting("not_found", "not_found"),
    lasting("bad_request", "bad_request"),
    Trouble("no quota, however worth a repetition", refuses("quota", {"x-should-retry": "true"}), 1, "quota"),
    Trouble("a context that is too long", refuses("context_too_long"), requests=2),
    Trouble("a context that is too long twice", refuses("context_too_long", times=2), requests=3),
    lasting("context_too_long", "context_too_long", requests=3),
    Trouble("stale reasoning", refuses("stale_reasoning"), requests=2),
    lasting("stale_reasoning", "bad_request", requests=2),
    Trouble("a storm", outage, 5, "budget"),
    Trouble("a wait beyond the turn", refuses("rate_limited", {"retry-after": "86400"}), 1, "budget"),
    Trouble("a refusal", answers(Answer(text=HALF, stop="refusal")), 1, "refusal"),
    Trouble("an empty answer", answers(Answer()), 2),
    Trouble("a blank answer", answers(Answer(text=" \n")), 2),
    Trouble("thinking without an answer", answers(Answer(think="Hm.")), 2),
    Trouble("an empty answer that lasts", lambda wire, whole: [wire.reply(Answer())] * 2, 2, "provider_error"),
    Trouble("the vendor's length limit", answers(Answer(text=HALF, stop="max_tokens")), 1, "too_large"),
    broken("an error within the answer", lambda wire, whole: wire.fault_within("overloaded")),
    broken("an internal error within the answer", lambda wire, whole: wire.fault_within("provider_error")),
    broken("a cut before the first event", lambda wire, whole: whole.cut_after(0)),
    broken("a cut in the middle", lambda wire, whole: whole.cut_after(MIDDLE)),
    broken("a cut before the last event", lambda wire, whole: whole.cut_after(len(whole.chunks) - 1)),
    broken("a clean end before the first event", lambda wire, whole: whole.ending_after(0)),
    broken("a clean end in the middle", lambda wire, whole: whole.ending_after(MIDDLE)),
    broken("a clean end before the last event", lambda wire, whole: whole.ending_after(len(whole.chunks) - 1)),
    broken("silence before the first event", lambda wire, whole: whole.silent_after(0)),
    broken("silence in the middle", lambda wire, whole: whole.silent_after(MIDDLE)),
    broken("an event that is no JSON", lambda wire, whole: Reply.stream([*whole.chunks[:MIDDLE], b'data: {"a\n\n'])),
    broken("an event that is no object", lambda wire, whole: Reply.stream([*whole.chunks[:MIDDLE], b"data: 1\n\n"])),
    broken("bytes that are no UTF-8", lambda wire, whole: Reply.stream([*whole.chunks[:MIDDLE], b"data: \xff\n\n"])),
    Trouble("a line without end", endless(b"data: ", 200), 1, "too_large"),
    Trouble("an error without end", endless(b'{"error": {"message": "prompt is too long: ', 400), requests=2),
    Trouble("slow bytes", lambda wire, whole: [whole.slowly(piece=5)], requests=1),
]  # fmt: skip


def _codes(code: str) -> Reply:
    return responses_wire.stream(*responses_wire.events_of([], responses_wire.failed(code, "?")), is_known=False)


HALF_CHUNK = chat_wire.chunk({"content": HALF})


def once(name: str, reply: Reply, error_type: ErrorType) -> Trouble:
    return Trouble(name, lambda wire, whole: [reply], 1, error_type)


def half(end: str, requests: int, error_type: ErrorType | None = None) -> Trouble:
    """Half an answer of Chat Completions that ends by `end`."""
    reply = chat_wire.stream(HALF_CHUNK, chat_wire.chunk({}, end), is_known=False)
    return Trouble(f"half an answer that ends by {end}", lambda wire, whole: [reply], requests, error_type)


NEVER = [
    ("openai", once("a policy code", _codes("bio_policy"), "refusal")),
    ("openai", once("a prompt that was flagged", _codes("invalid_prompt"), "refusal")),
    ("openai", once("a place where data may not go", _codes("data_residency_mismatch"), "bad_request")),
    (
        "openai-chat",
        once(
            "no credits, in a stream",
            chat_wire.stream(HALF_CHUNK, {"error": {"code": 402, "message": "Insufficient credits"}}, is_known=False),
            "quota",
        ),
    ),
    (
        "openai-chat",
        once(
            "a wrong path with a good status",
            Reply.error(200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}),
            "not_found",
        ),
    ),
    (
        "anthropic",
        once(
            "an encoding that was not asked for",
            Reply.stream([b"x"], {"content-encoding": "gzip"}),
            "provider_error",
        ),
    ),
    ("openai-chat", half("sensitive", 1, "refusal")),
    ("openai-chat", half("model_length", 1, "too_large")),
]
HALF_ANSWERS = [("openai-chat", half(end, 2)) for end in ("network_error", "repetition", "of next year")]


@asynccontextmanager
async def asking(client: Client, wire: VendorWire, *, silence_timeout: float = 0.5) -> AsyncIterator[Environment]:
    provider = wire.provider(silence_timeout=silence_timeout)
    async with environment(client, providers=ProviderRegistry({split_model(wire.model)[0]: lambda: provider})) as env:
        yield env


async def led(env: Environment, wire: VendorWire, *, limits: dict[str, Any] | None = None) -> DrivenSession:
    session = await env.start(SessionInput.model_validate({"model": wire.model, "limits": limits or {}}))
    await session.prompt(id="p1", text="look it up")
    return session


def _half_answers(turn: ConversationMessage) -> list[str]:
    texts = [step.text for step in turn.steps if step.kind == "model" and step.text] + [turn.agent_message or ""]
    return [text for text in texts if text not in ("", CALL.text, ANSWER.text, HALF)]


async def answered_turn(session: DrivenSession, text: str) -> ConversationMessage:
    """Return the session's next turn once it has ended."""
    turns = (await session.state({"limit": 1})).session.turn_count
    await session.prompt(text)
    state = await session.until(lambda state: state.session.turn_count > turns and state.status == "idle", turns=1)
    return state.messages[-1]


async def struck(env: Environment, wire: VendorWire, session: DrivenSession, trouble: Trouble, position: str) -> None:
    """Lead the session through `trouble` at the `first` or the `last` model call of its next turn, and check it."""
    first, last = wire.reply(CALL), wire.reply(ANSWER)
    intact = first if position == "first" else last
    met = trouble.replies(wire, intact)
    whole = [] if len(met) == trouble.requests else [intact]
    assert len(met) + len(whole) == trouble.requests
    script = [*met, *whole] if position == "first" else [first, *met, *whole]
    goes_on = position == "first" and trouble.error_type is None
    wire.script(*script, *([last] if goes_on else []))
    requests, calls = len(wire.requests), env.tools.calls
    calls.clear()
    turn = await answered_turn(session, "look it up")

    assert turn.error_type == trouble.error_type, turn.error
    assert turn.agent_message == (None if trouble.error_type else ANSWER.text)
    assert _half_answers(turn) == []
    assert len(wire.requests) - requests == trouble.requests + (position == "last" or goes_on)
    tool_has_run = position == "last" or trouble.error_type is None
    assert len(calls) == tool_has_run
    assert not wire.server.problems


PAGE = Reply.error(200, "<html>sign in</html>")


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_page_in_place_of_an_answer_passes_where_there_was_one_before(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(CALL, PAGE, PAGE, ANSWER)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 4)
        wire.script(PAGE, PAGE, PAGE)
        await session.prompt("and now?")
        turns = await session.idle(turns=2)
        assert (turns[-1].error_type, len(wire.requests)) == ("provider_error", 7)


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_page_at_an_address_that_has_never_answered_is_a_wrong_address(
    temporal: Client, api: str
) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(PAGE)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.error_type, len(wire.requests)) == ("provider_error", 1)
        assert "check the address of" in (turn.error or "")


async def test_agt_9_calls_of_a_message_that_says_end_turn_are_run(temporal: Client) -> None:
    async with WIRES["anthropic"]() as wire, asking(temporal, wire) as env:
        wire.script(Answer(text=CALL.text, calls=CALL.calls, stop="end_turn"), ANSWER)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 2)
        assert [call.call_id for call in env.tools.calls] == ["1.1.0"]


@pytest.mark.parametrize("api", WIRES)
async def test_agt_10_an_empty_answer_is_paid_for_and_counted(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(Answer(input=100, output=7), Answer(text=ANSWER.text, input=100, output=20))
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert turn.agent_message == ANSWER.text
        assert turn.usage is not None
        assert (turn.usage.input_tokens, turn.usage.output_tokens) == (200, 27)
        assert [step.text for step in turn.steps if step.kind == "model"] == [ANSWER.text]


Runs = Mapping[tuple[str, Trouble, str], asyncio.Future[None]]


async def lead_through(temporal: Client, api: str, runs: Runs) -> None:
    """Lead a session of one API through its faults, a turn each: whatever a turn meets, the next one goes on.

    Where a context was too long the session sees less of it from then on: such a fault has a session of its own.
    """
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        start = SessionInput.model_validate({"model": wire.model, "limits": ONE_MINUTE})
        shared = await env.start(start)
        for (_, trouble, position), run in runs.items():
            is_alone = "context" in trouble.name
            session = await env.start(start) if is_alone else shared
            try:
                await struck(env, wire, session, trouble, position)
                run.set_result(None)
            except Exception as error:  # noqa: BLE001  # the test of this fault raises it
                run.set_exception(error)
                shared = shared if is_alone else await env.start(start)
                wire.server.queue.clear()
                wire.server.problems.clear()
        wire.script(ANSWER)
        assert (await answered_turn(shared, "and now?")).agent_message == ANSWER.text


@pytest.fixture(scope="module")
async def runs(temporal: Client, request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    """Lead sessions through every fault that a test was selected for, all APIs at once: most of it is waiting."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = [(each["api"], each["trouble"], each["position"]) for each in parameters if "trouble" in each]
    runs = {each: asyncio.get_running_loop().create_future() for each in selected}
    running = [
        asyncio.create_task(lead_through(temporal, api, {each: run for each, run in runs.items() if each[0] == api}))
        for api in {api for api, _, _ in selected}
    ]
    yield runs
    if not all(run.done() for run in runs.values()):
        for task in running:
            task.cancel()
    await asyncio.gather(*running)


POSITIONS = ("first", "last")
FAULTS = [
    (api, trouble, POSITIONS[(row + column) % 2])
    for column, api in enumerate(WIRES)
    for row, trouble in enumerate(TROUBLES)
]
"""Every fault of every API, at one of the two calls of a turn: at the one of one API, at the other of the next."""

in_turn = partial(pytest.mark.parametrize, ("api", "trouble", "position"), ids=str)


@in_turn(FAULTS)
async def test_agt_9_a_fault_ends_as_it_should_and_the_vendor_is_asked_as_often_as_allowed(
    runs: Runs, api: str, trouble: Trouble, position: str
) -> None:
    await runs[api, trouble, position]


@in_turn([(*one, "first") for one in NEVER])
async def test_agt_9_what_will_be_the_same_the_next_time_is_not_asked_for_again(
    runs: Runs, api: str, trouble: Trouble, position: str
) -> None:
    await runs[api, trouble, position]


@in_turn([(*one, "last") for one in HALF_ANSWERS])
async def test_agt_9_half_an_answer_is_asked_for_again_and_not_taken_for_one(
    runs: Runs, api: str, trouble: Trouble, position: str
) -> None:
    await runs[api, trouble, position]


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_agt_3_blocks_that_a_vendor_refuses_in_words_nobody_knows_are_sent_in_no_later_turn(
    temporal: Client, api: str
) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(CALL, wire.fault("bad_request"), ANSWER)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.error_type, len(wire.requests)) == ("bad_request", 2)
        await session.prompt("and now?")
        turns = await session.idle(turns=2)
        assert turns[-1].agent_message == ANSWER.text
        assert [CALL.think in request.raw.decode() for request in wire.requests] == [False, True, False]
        assert [CALL.text in request.raw.decode() for request in wire.requests] == [False, True, True]


@pytest.mark.parametrize("api", WIRES)
async def test_agt_10_a_count_that_is_none_is_not_kept_and_costs_no_answer(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(Answer(text=ANSWER.text, output=-1), Answer(text=ANSWER.text, output=10**18))
        session = await led(env, wire)
        await session.prompt("and now?")
        turns = await session.idle(turns=2)
        assert [(turn.agent_message, turn.usage) for turn in turns] == [(ANSWER.text, None)] * 2
        assert len(wire.requests) == 2


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_vendor_that_can_not_be_reached_is_asked_until_it_can(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(ANSWER)
        async with wire.server.refusing():
            session = await led(env, wire)
            await session.until(lambda state: state.is_processing)
            await _failed_once(session)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 1)


async def _failed_once(session: DrivenSession) -> None:
    """Return once the model call has failed in an attempt; Temporal knows of it before the history does."""

    async def has_failed() -> bool:
        pending = (await session.handle.describe()).raw_description.pending_activities
        return any(one.attempt > 1 for one in pending)

    await until(has_failed)


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_long_wait_is_the_workflow_s_and_everyone_sees_until_when(
    temporal: Client, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    wait_in_workflow_beyond(monkeypatch, 2.0)
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        wire.script(wire.fault("rate_limited", {"retry-after": "2.5"}), ANSWER)
        session = await led(env, wire)
        waiting = await session.until(lambda state: state.status == "waiting_retry")
        assert waiting.waiting_until is not None
        assert timedelta() < waiting.waiting_until - datetime.now(UTC) < timedelta(seconds=2.6)
        vendor = {"anthropic": "Anthropic", "openai": "OpenAI"}.get(api, "The endpoint of openai_chat.base_url")
        assert waiting.waiting_reason == f"{vendor} is limiting requests: HTTP 429, request req_fault."
        (turn,) = await session.idle(turns=1)
        after = await session.until(lambda state: state.status == "idle")
        assert (after.waiting_until, after.waiting_reason) == (None, None)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 2)
        assert turn.processing_time_ms >= 2_500


@pytest.mark.parametrize(
    ("fault", "phrase"),
    [("overloaded", "is overloaded"), ("provider_error", "had an error"), ("rate_limited", "limiting")],
)
async def test_agt_9_a_turn_that_has_no_time_to_wait_says_what_it_would_wait_for(
    temporal: Client, fault: Fault, phrase: str
) -> None:
    async with WIRES["anthropic"]() as wire, asking(temporal, wire) as env:
        wire.script(wire.fault(fault, {"retry-after": "90"}))
        session = await led(env, wire, limits=ONE_MINUTE)
        (turn,) = await session.idle(turns=1)
        error = turn.error or ""
        assert (turn.error_type, len(wire.requests)) == ("budget", 1)
        assert error.startswith("Anthropic ")
        assert phrase in error
        assert "would have to wait 90 s" in error
        assert "limits.turn_timeout is 60 s" in error


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_an_answer_that_takes_too_long_is_judged_like_every_other_failure(
    temporal: Client, api: str
) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire, silence_timeout=60) as env:
        wire.script(wire.reply(ANSWER).silent_after(MIDDLE), ANSWER)
        session = await led(env, wire, limits={"model_timeout": 1})
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests), wire.server.left) == (ANSWER.text, 2, 1)
        (history,) = await session.histories()
        failures = [
            event.activity_task_started_event_attributes.last_failure.application_failure_info.type
            for event in history.events
            if event.activity_task_started_event_attributes.attempt > 1
        ]
        assert failures == ["timeout"]


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_what_a_person_has_to_do_is_said_in_words(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire) as env:
        session, errors = await env.start(SessionInput(model=wire.model)), {}
        for number, fault in enumerate(("auth", "permission", "quota", "not_found", "bad_request"), start=1):
            wire.script(wire.fault(fault))
            errors[fault] = (await answered_turn(session, "look it up")).error or ""
            assert len(wire.requests) == number
        assert len(set(errors.values())) == len(errors)
        assert "check" in errors["auth"]
        assert "permission" in errors["permission"]
        assert "credit" in errors["quota"]
        assert "model" in errors["not_found"]
        assert all("HTTP 4" in sentence for sentence in errors.values())
        assert not [sentence for sentence in errors.values() if "sk-" in sentence or "look it up" in sentence]


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_turn_that_is_stopped_hangs_up(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, asking(temporal, wire, silence_timeout=60) as env:
        wire.script(wire.reply(ANSWER).silent_after(MIDDLE))
        session = await led(env, wire)
        await wire.server.until(lambda: wire.server.silences == 1)
        await session.update("cancel_turn", {"message_id": "p1"})
        (turn,) = await session.idle(turns=1)
        assert (turn.status, turn.agent_message) == ("cancelled", None)
        await wire.server.until(lambda: wire.server.left == 1)
        assert len(wire.requests) == 1
