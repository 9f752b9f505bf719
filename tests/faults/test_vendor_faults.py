"""Every fault of every API: AGT-9, AGT-11. What sessions make of faults is in `test_vendor_faults_in_sessions.py`.

A model call meets a fault. Whatever happens, no half answer is taken for a whole one, and the vendor was asked exactly
as often as AGT-9 allows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from temporalio.exceptions import ActivityError, ApplicationError

from tests.faults.model_attempts import PROMPT, ModelAttempts
from tests.faults.vendor_faults import (
    ANSWER,
    AT_ONCE,
    CALL,
    HALF,
    MIDDLE,
    Trouble,
    answers,
    broken,
    lasting,
    outage,
    passing,
    refuses,
)
from tests.vendors import chat_wire, responses_wire
from tests.vendors.apis import WIRES
from turnkeeper.activities.failures import MAX_WAIT, describe_failure
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import ModelCallOutcome, ModelResponse
from turnkeeper.testing.vendor_server import Answer, Fault, Reply, VendorServer

NOT_AGAIN = {"x-should-retry": "false"}
SILENCE_SECONDS = 0.5


def past_date() -> str:
    return format_datetime(datetime.now(UTC) - timedelta(minutes=1), usegmt=True)


def endless(beginning: bytes, status: int) -> Callable[..., list[Reply]]:
    """A reply of twelve megabytes after this beginning."""
    return lambda wire, whole: [Reply(chunks=(beginning, *[b"x" * 65_536] * 190), status=status)]


TOO_LONG = b'{"error": {"message": "prompt is too long: '

JINJA = "Jinja Exception: Conversation roles must alternate"


def without_last_line(whole: Reply) -> Reply:
    """Return the reply without the end of its last event, and without `[DONE]`."""
    last = whole.chunks[-1].removesuffix(b"data: [DONE]\n\n").rstrip(b"\n")
    return Reply.stream([*whole.chunks[:-1], last])


def cut_in_last_event(whole: Reply) -> Reply:
    """Return a reply that ends cleanly within its only event."""
    return Reply.stream([whole.chunks[0][:-10]])


def repeated(name: str, make: Callable[[VendorServer, Reply], Reply], *, end: str = "provider_error") -> Trouble:
    """A failure that is the same each time."""
    return Trouble(f"{name}, three times", lambda wire, whole: [make(wire, whole)] * 3, 3, end)


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
    # As a whole, without parameters, without schemas, without tools.
    lasting("bad_request", "bad_request", requests=4),
    Trouble("no quota, however worth a repetition", refuses("quota", {"x-should-retry": "true"}), 1, "quota"),
    Trouble("a context that is too long", refuses("context_too_long"), 1, "context_too_long"),
    Trouble("stale reasoning", refuses("stale_reasoning"), 1, "bad_request"),
    Trouble("an outage", outage, 5, "wait"),
    Trouble("a wait beyond the turn", refuses("rate_limited", {"retry-after": "86400"}), 1, "wait"),
    Trouble("a refusal", answers(Answer(text=HALF, stop="refusal")), 1, "refusal"),
    Trouble("an empty answer", answers(Answer()), 1, "empty_answer"),
    Trouble("a blank answer", answers(Answer(text=" \n")), 1, "empty_answer"),
    Trouble("thinking without an answer", answers(Answer(think="Hm.")), 1, "empty_answer"),
    Trouble("the vendor's length limit", answers(Answer(text=HALF, stop="max_tokens")), 1, "max_tokens"),
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
    Trouble("an error without end", endless(TOO_LONG, 400), 1, "context_too_long"),
    repeated("an error in words of its own", lambda wire, whole: Reply.error(500, {"error": {"message": JINJA}})),
    repeated("JSON lines that are no events", lambda wire, whole: Reply.stream([b'{"id": "a"}\n', b'{"id": "b"}\n'])),
    repeated("a JSON line with an error", lambda wire, whole: Reply.stream([b'{"error": "Failed to parse input"}\n'])),
    repeated("a clean end in the middle", lambda wire, whole: whole.ending_after(MIDDLE), end="connection"),
    repeated("an event that is no JSON", lambda wire, whole: Reply.stream([*whole.chunks[:MIDDLE], b'data: {"a\n\n'])),
    repeated("an event that is no object", lambda wire, whole: Reply.stream([*whole.chunks[:MIDDLE], b"data: 1\n\n"])),
    Trouble("a last event without its blank line", lambda wire, whole: [without_last_line(whole)], 1),
    Trouble("a last event that is cut", lambda wire, whole: [cut_in_last_event(whole)], 2),
    Trouble("slow bytes", lambda wire, whole: [whole.slowly(piece=5)], requests=1),
]  # fmt: skip


def _codes(code: str) -> Reply:
    return responses_wire.stream(*responses_wire.events_of([], responses_wire.failed(code, "?")), is_known=False)


HALF_CHUNK = chat_wire.chunk({"content": HALF})


def once(name: str, reply: Reply, end: str) -> Trouble:
    return Trouble(name, lambda wire, whole: [reply], 1, end)


def half(reason: str, requests: int, end: str = "answer") -> Trouble:
    """Half an answer of Chat Completions that ends by `reason`."""
    reply = chat_wire.stream(HALF_CHUNK, chat_wire.chunk({}, reason), is_known=False)
    return Trouble(f"half an answer that ends by {reason}", lambda wire, whole: [reply], requests, end)


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
    ("openai-chat", half("model_length", 1, "max_tokens")),
]
TWISTED = [
    ("anthropic", b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}\n\n'),
    ("anthropic", b'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}\n\n'),
    ("openai-chat", b'data: {"choices": [{"delta": {"tool_calls": [7]}}]}\n\n'),
    ("openai-chat", b'data: {"choices": [{"delta": "a"}]}\n\n'),
]
"""Events that no reader expects."""
HALF_ANSWERS = [("openai-chat", half(reason, 2)) for reason in ("network_error", "repetition", "of next year")]


ANSWERS = (CALL, ANSWER)
FAULTS = [
    (api, trouble, ANSWERS[(row + column) % 2])
    for column, api in enumerate(WIRES)
    for row, trouble in enumerate(TROUBLES)
]
"""Every fault of every API, in place of a call or of an answer: of the one with one API, of the other with the next."""


@pytest.fixture(scope="module")
async def wires() -> AsyncIterator[Mapping[str, VendorServer]]:
    """A server of each API for the whole file."""
    async with WIRES["anthropic"]() as anthropic, WIRES["openai"]() as openai, WIRES["openai-chat"]() as chat:
        yield {"anthropic": anthropic, "openai": openai, "openai-chat": chat}


@pytest.fixture(scope="module")
def shared(wires: Mapping[str, VendorServer]) -> Mapping[tuple[str, bool], ModelAttempts]:
    """The callers of each server, by API and by whether silence is a timeout."""
    return {
        (api, is_quick): ModelAttempts(wire, silence_timeout=SILENCE_SECONDS) if is_quick else ModelAttempts(wire)
        for api, wire in wires.items()
        for is_quick in (False, True)
    }


SharedAttempts = Mapping[tuple[str, bool], ModelAttempts]


async def check(attempts: ModelAttempts, trouble: Trouble, answer: Answer) -> None:
    """Run a model call that meets `trouble` in place of `answer`, and check how it ends."""
    server = attempts.wire.server
    server.queue.clear()
    server.problems.clear()
    server.requests.clear()
    trouble.script(attempts.wire, attempts.wire.reply(answer))
    end, response = await end_of(attempts.outcome())
    assert end == trouble.end
    if trouble.end == "answer":
        assert response
        assert (response.text, len(response.calls)) == (answer.text, len(answer.calls))
    assert len(server.requests) == trouble.requests
    assert not server.problems


async def end_of(call: Awaitable[ModelCallOutcome]) -> tuple[str | None, ModelResponse | None]:
    """Return how a model call ended, as `Trouble.end` says it, and its response."""
    try:
        outcome = await call
    except ApplicationError as failure:
        return failure.type, None
    if outcome.response:
        is_whole = outcome.response.stop in ("end_turn", "tool_calls")
        return "answer" if is_whole else outcome.response.stop, outcome.response
    return outcome.repeat if outcome.wait_seconds is None else "wait", None


@pytest.mark.parametrize(("api", "trouble", "answer"), FAULTS, ids=[f"{api}-{trouble}" for api, trouble, _ in FAULTS])
async def test_agt_9_each_fault_has_its_outcome_and_its_number_of_requests(
    shared: SharedAttempts, api: str, trouble: Trouble, answer: Answer
) -> None:
    await check(shared[api, "silence" in trouble.name], trouble, answer)


@pytest.mark.parametrize(("api", "trouble"), NEVER, ids=str)
async def test_agt_9_a_failure_that_will_not_change_is_not_retried(
    shared: SharedAttempts, api: str, trouble: Trouble
) -> None:
    await check(shared[api, False], trouble, CALL)


@pytest.mark.parametrize(("api", "event"), TWISTED)
async def test_agt_9_an_answer_unreadable_in_the_same_way_ends_after_three_attempts(
    shared: SharedAttempts, api: str, event: bytes
) -> None:
    twisted = repeated("a twisted event", lambda wire, whole: Reply.stream([whole.chunks[0], event]))
    await check(shared[api, False], twisted, ANSWER)


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_byte_that_is_not_utf_8_is_replaced(shared: SharedAttempts, api: str) -> None:
    attempts = shared[api, False]
    attempts.wire.server.requests.clear()
    whole = attempts.wire.reply(Answer(text="Größe and more words"))
    odd = Reply.stream([chunk.replace(b"\\u00f6", b"\xf6") for chunk in whole.chunks])
    assert odd != whole
    attempts.wire.script(odd)
    response = (await attempts.outcome()).response
    assert response
    assert (response.text, len(attempts.wire.requests)) == ("Gr\ufffd\u00dfe and more words", 1)


async def test_agt_9_equal_failures_are_counted_across_the_death_of_a_worker(shared: SharedAttempts) -> None:
    attempts = shared["openai-chat", False]
    attempts.wire.script(*[Reply.error(500, {"error": {"message": JINJA}})] * 3)
    details: tuple[Any, ...] = ()
    for number in range(1, 3):
        environment = attempts.environment(number, details=details)
        reports: list[tuple[Any, ...]] = []
        environment.on_heartbeat = lambda *report: reports.append(report)  # noqa: B023  # used before the next
        assert (await attempts.attempt(environment)).wait_type == "provider_error"
        details = reports[-1]  # all that is left, since the worker dies before Temporal has the outcome
    failure = await failure_of(attempts.attempt(attempts.environment(3, details=details)))
    assert failure.non_retryable
    assert f"says “{JINJA}” (HTTP 500), 3 times" in failure.message


@pytest.mark.parametrize(("api", "trouble"), HALF_ANSWERS, ids=str)
async def test_agt_9_a_truncated_answer_is_retried_and_never_accepted(
    shared: SharedAttempts, api: str, trouble: Trouble
) -> None:
    await check(shared[api, False], trouble, ANSWER)


# ---- one API after the other, each with a server of its own

FOR_PEOPLE: tuple[Fault, ...] = ("auth", "permission", "quota", "not_found", "bad_request")
PAGE = Reply.error(200, "<html>sign in</html>")


@pytest.fixture(params=WIRES)
async def attempts(request: pytest.FixtureRequest) -> AsyncIterator[ModelAttempts]:
    """Model calls to a vendor that has not been called yet."""
    async with WIRES[request.param]() as wire:
        yield ModelAttempts(wire)


async def failure_of(call: Awaitable[ModelCallOutcome]) -> ApplicationError:
    with pytest.raises(ApplicationError) as failed:
        await call
    return failed.value


async def test_agt_9_an_html_page_from_an_endpoint_that_has_answered_before_is_retried(attempts: ModelAttempts) -> None:
    attempts.wire.script(CALL, PAGE, PAGE, ANSWER)
    assert [(await end_of(attempts.outcome()))[0] for _ in range(2)] == ["answer"] * 2
    assert len(attempts.wire.requests) == 4
    attempts.wire.script(PAGE, PAGE, PAGE)
    assert (await failure_of(attempts.outcome())).type == "provider_error"
    assert len(attempts.wire.requests) == 7


async def test_agt_9_an_html_page_from_an_endpoint_that_never_answered_is_a_wrong_address(
    attempts: ModelAttempts,
) -> None:
    attempts.wire.script(PAGE)
    failure = await failure_of(attempts.outcome())
    assert (failure.type, len(attempts.wire.requests)) == ("provider_error", 1)
    assert "check the address of" in failure.message


async def test_agt_10_an_invalid_token_count_is_dropped_and_does_not_fail_the_answer(attempts: ModelAttempts) -> None:
    for count in (-1, 10**18):
        attempts.wire.script(Answer(text=ANSWER.text, output=count))
        response = (await attempts.outcome()).response
        assert response
        assert (response.text, response.usage) == (ANSWER.text, None)
    assert len(attempts.wire.requests) == 2


async def test_agt_10_an_empty_answer_is_metered_for_every_api(attempts: ModelAttempts) -> None:
    attempts.wire.script(Answer(input=100, output=7))
    outcome = await attempts.outcome()
    spent = outcome.spent or Usage()
    assert (outcome.repeat, spent.input_tokens, spent.output_tokens) == ("empty_answer", 100, 7)


async def test_agt_9_an_unreachable_vendor_is_retried_until_it_responds(attempts: ModelAttempts) -> None:
    attempts.wire.script(ANSWER)
    async with attempts.wire.server.refusing():
        outcome = await attempts.attempt()
    assert (outcome.wait_type, outcome.wait_seconds) == ("connection", 0.5)
    assert (await end_of(attempts.outcome()))[0] == "answer"
    assert len(attempts.wire.requests) == 1


async def test_agt_9_the_workflow_does_a_long_wait_and_names_the_vendor(attempts: ModelAttempts) -> None:
    attempts.wire.script(attempts.wire.fault("rate_limited", {"retry-after": "90"}))
    outcome = await attempts.outcome()
    provider = attempts.wire.model.partition(":")[0]
    vendor = {"anthropic": "Anthropic", "openai": "OpenAI"}.get(provider, "The endpoint of openai_chat.base_url")
    assert outcome.wait_seconds == 90
    assert outcome.wait_reason == f"{vendor} is limiting requests: HTTP 429, request req_fault."
    attempts.wire.script(attempts.wire.fault("rate_limited", {"retry-after": "86400"}))
    assert (await attempts.outcome()).wait_seconds == MAX_WAIT


async def test_agt_9_an_error_that_a_person_has_to_fix_is_explained(attempts: ModelAttempts) -> None:
    errors = {}
    for fault in FOR_PEOPLE:
        attempts.wire.refuse_always(attempts.wire.fault(fault))
        errors[fault] = sentence_of(await failure_of(attempts.outcome()))
    assert len(set(errors.values())) == len(errors)
    assert "check" in errors["auth"]
    assert "permission" in errors["permission"]
    assert "credit" in errors["quota"]
    assert "model" in errors["not_found"]
    assert all("HTTP 4" in sentence for sentence in errors.values())
    assert not [sentence for sentence in errors.values() if "sk-" in sentence or PROMPT in sentence]


def sentence_of(failure: ApplicationError) -> str:
    """Return what a turn says that ends by the failure."""
    error = ActivityError(
        "the activity failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="a worker",
        activity_type="call_model",
        activity_id="1",
        retry_state=None,
    )
    error.__cause__ = failure
    return describe_failure(error)[1]


async def test_agt_9_a_cancelled_call_disconnects_and_keeps_the_partial_answer(attempts: ModelAttempts) -> None:
    attempts.wire.script(attempts.wire.reply(ANSWER).silent_after(MIDDLE))
    environment = attempts.environment()
    attempt = asyncio.create_task(attempts.attempt(environment))
    await attempts.wire.server.until(lambda: attempts.wire.server.silences == 1)
    environment.cancel()
    assert (await attempt).response is None
    await attempts.wire.server.until(lambda: attempts.wire.server.left == 1)
    assert len(attempts.wire.requests) == 1
