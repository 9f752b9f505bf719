"""What every provider of models does, as checks that any of them passes (AGT-3, AGT-4, AGT-9, AGT-11).

A check is a function that starts a `FaultServer` of its own and raises an `AssertionError` that says what is wrong:

    @pytest.mark.parametrize("check", checks_for(AcmeServer))
    async def test_acme_is_a_provider(check):
        await check(AcmeServer)

Without pytest: `asyncio.run(check_provider(AcmeServer))`. A provider over HTTP has more that can go wrong, and with a
`VendorServer` more checks. What is special about a vendor needs tests of its own.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count, pairwise
from typing import Any, get_args
from unittest.mock import patch

from turnkeeper.activities.providers.protocol import CallInfo, Delta, Meter, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ProviderState,
    RequestHead,
    ToolSpec,
)
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, FaultServer, Reply, VendorServer

Check = Callable[[Callable[[], FaultServer]], Awaitable[None]]

WHOLE = Answer(text="There is a chair.", think="Where is it?", calls=[Call("call_1", "look", {"at": "left"})])
QUESTION = ModelMessage(role="user", content="What is there?")

SILENCE_SECONDS = 0.5
"""How long a provider waits for a server that a check lets be silent."""

ERROR_TYPES: dict[Fault, str] = {"permission": "auth", "stale_reasoning": "bad_request"}
"""The type of a fault, where it is not of the same name."""

BLAMES_A_PART: frozenset[Fault] = frozenset({"bad_request", "stale_reasoning"})
"""Faults after which the request may be sent again, without a part of it."""


def request(*messages: ModelMessage, max_tokens: int | None = None) -> ModelRequest:
    head = RequestHead(system="Be brief.", tools=[ToolSpec(name="look")], max_tokens=max_tokens)
    return ModelRequest(head=head, messages=list(messages) or [QUESTION])


def request_after(step: ModelResponse) -> ModelRequest:
    """Return the next request of a turn, after its calls have had their results."""
    stored = ModelResponse.model_validate_json(step.model_dump_json())
    message = ModelMessage(role="assistant", content=stored.text, tool_calls=stored.calls, state=stored.state)
    results = [ModelMessage(role="tool", content="ok", call_id=call.id) for call in stored.calls]
    return request(QUESTION, message, *results)


class Caller:
    """A provider that asks a server, and the number of its requests."""

    def __init__(self, server: FaultServer, provider: Provider) -> None:
        self.server = server
        self._provider = provider
        self._name = server.model.partition(":")[2]
        self._numbers = count(1)
        self.meter = Meter()
        """What the latest request has cost, until its answer was complete."""

    def stream(self, model_request: ModelRequest | None = None) -> AsyncGenerator[Delta | ModelResponse, None]:
        self.meter = Meter()
        info = CallInfo(session_id="s", request=next(self._numbers), attempt=1, meter=self.meter)
        return self._provider.stream(self._name, model_request or request(), info)

    async def answer(self, model_request: ModelRequest | None = None) -> tuple[list[Delta], ModelResponse]:
        """Return the deltas of an answer and the whole of it. Raises `ModelError`, also if there is no whole."""
        pieces: list[Delta | ModelResponse] = []
        async with asyncio.timeout(BOUND), aclosing(self.stream(model_request)) as stream:
            async for piece in stream:
                pieces.append(piece)
                if isinstance(piece, Delta):
                    self.meter.write(piece.text)
        deltas = [piece for piece in pieces if isinstance(piece, Delta)]
        if len(deltas) == len(pieces):
            raise ModelError("connection", "the stream ended without a response")
        assert len(deltas) + 1 == len(pieces), "there is more than one response"
        response = pieces[-1]
        assert isinstance(response, ModelResponse), "the response is not the last piece"
        return deltas, response

    async def failure(self, model_request: ModelRequest | None = None) -> ModelError:
        """Return the error of a request that fails."""
        try:
            _, response = await self.answer(model_request)
        except ModelError as error:
            # A chained exception may have the vendor's body in it, and would be written into the history and into logs.
            assert error.__cause__ is None, "raise it `from None`"
            assert error.__suppress_context__ or error.__context__ is None, "raise it `from None`"
            return error
        raise AssertionError(f"it is taken for an answer: {response!r}")


@asynccontextmanager
async def connected(make: Callable[[], FaultServer], *, silence_timeout: float = BOUND) -> AsyncGenerator[Any, None]:
    """Start a server; yield a `Caller`, whose `server` is what `make` returns."""
    async with make() as server:
        yield Caller(server, server.provider(silence_timeout=silence_timeout))


# ---- every provider


async def it_says_what_there_is_to_know_of_its_vendor(make: Callable[[], FaultServer]) -> None:
    async with make() as server:
        provider = type(server.provider())
    vendor = provider.vendor
    assert server.model.partition(":")[0] == vendor.name
    assert vendor.title
    assert not vendor.credentials or vendor.credentials[0] == vendor.key, "the first credential is the key"
    missing = provider.missing(Settings())
    assert missing is None or all(missing), "what is missing, and how to fix it"
    with patch.dict("os.environ", dict.fromkeys(vendor.credentials[:1], "key-0123456789")):
        try:
            assert isinstance(provider.from_settings(Settings()), provider)
        except ModelError:
            assert provider.missing(Settings()), "it can't be built, and `missing` does not say why"


async def an_answer_is_streamed_and_then_whole(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(replace(WHOLE, reasoning=5))
        deltas, response = await caller.answer()
        texts = {
            kind: "".join(delta.text for delta in deltas if delta.kind == kind) for kind in ("think", "respond", "call")
        }
        assert texts == {"think": WHOLE.think, "respond": WHOLE.text, "call": "look"}
        assert (response.text, response.thinking, response.stop) == (WHOLE.text, WHOLE.think, "tool_calls")
        assert [(call.name, call.args) for call in response.calls] == [("look", {"at": "left"})]
        assert response.request_id
        assert response.usage, "what it has cost is not known"
        assert response.usage.output_tokens >= response.usage.reasoning_tokens > 0


async def what_was_answered_goes_back(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        parallel = [Call("call_1", "look", {"at": "left"}), Call("call_2", "look", {"at": "right"})]
        caller.server.script(replace(WHOLE, calls=parallel), Answer(text="Done."))
        _, step = await caller.answer()
        assert len({call.id for call in step.calls}) == 2, "calls share an id"
        _, response = await caller.answer(request_after(step))
        assert (response.text, response.stop) == ("Done.", "end_turn")


async def another_apis_step_goes_to_it_without_its_state(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(WHOLE, Answer(text="Done."))
        _, step = await caller.answer()
        foreign = ProviderState(api="of.nobody", model="x", items=[{"type": "secret-of-another-api"}])
        await caller.answer(request_after(step.model_copy(update={"state": foreign})))
        if isinstance(caller.server, VendorServer):
            assert b"secret-of-another-api" not in caller.server.requests[-1].raw


async def arguments_that_are_no_object_stay_as_they_are(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(Answer(calls=[Call("call_1", "look", '{"at": ')]), Answer(text="Done."))
        _, step = await caller.answer()
        (call,) = step.calls
        assert isinstance(call.args, str)
        assert '{"at": ' in call.args
        await caller.answer(request_after(step))


async def a_cut_answer_says_so_and_a_refusal_is_none(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(Answer(text="Half an answer", stop="max_tokens"), Answer(text="I won't.", stop="refusal"))
        _, response = await caller.answer(request(max_tokens=1))
        assert (response.text[:4], response.stop) == ("Half", "max_tokens")
        assert (await caller.failure()).error_type == "refusal"


async def every_fault_has_its_type(make: Callable[[], FaultServer]) -> None:
    for fault in get_args(Fault):
        async with connected(make) as caller:
            reply = caller.server.fault(fault)
            if isinstance(caller.server, VendorServer):
                caller.server.refuse_always(reply)
            else:
                caller.server.script(reply)
            error = await caller.failure()
            assert error.error_type in (fault, ERROR_TYPES.get(fault, fault)), f"{fault} is {error.error_type}"
            assert caller.meter.usage(input_tokens=77) is None, f"{fault} has cost something"
            if isinstance(caller.server, VendorServer):
                assert len(caller.server.requests) == 1 or fault in BLAMES_A_PART, f"{fault} is asked again"
                bodies = [received.body for received in caller.server.requests]
                assert all(before != after for before, after in pairwise(bodies)), f"{fault}: the same is sent again"
                assert not [
                    received for received in caller.server.requests if _key_in(received.headers) in error.message
                ]


def _key_in(headers: dict[str, str]) -> str:
    """Return the key of a request, which no error may name."""
    header = headers.get("authorization") or headers.get("x-api-key") or headers.get("api-key") or ""
    return header.rpartition(" ")[2] or "\0"


async def a_time_to_wait_is_passed_on(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(caller.server.fault("rate_limited", {"retry-after": "7"}))
        assert (await caller.failure()).retry_after == 7


async def an_answer_that_breaks_off_is_none(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(caller.server.cut(WHOLE))
        assert (await caller.failure()).error_type == "connection"


# ---- every provider over HTTP


async def what_was_sent_stays_as_it_was(make: Callable[[], FaultServer]) -> None:
    # Caches and reasoning are bound to it.
    async with connected(make) as caller:
        caller.server.script(WHOLE, Answer(text="Done."))
        _, step = await caller.answer()
        await caller.answer(request_after(step))
        bodies = [received.body for received in caller.server.requests]
        for key in caller.server.provider().vendor.conversation_fields:
            before, after = (_without_cache_marks(body.get(key, [])) for body in bodies)
            # A conversation as one text has a mark before the newest turn.
            is_one_text = len(before) == len(after)
            assert is_one_text or after[: len(before)] == before, f"{key} is not what it was"


def _without_cache_marks(messages: list[Any]) -> list[Any]:
    return [
        json.loads(json.dumps(message).replace(', "cache_control": {"type": "ephemeral"}', "")) for message in messages
    ]


async def a_request_is_one_with_the_key(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(WHOLE)
        await caller.answer()
        (received,) = caller.server.requests
        assert _key_in(received.headers) != "\0", "it has no key"
        assert received.headers["accept-encoding"] == "identity", "what is compressed can't be limited"
        assert caller.server.system_of(received.body)
        assert "look" in json.dumps(received.body), "it has no tools"


async def a_connection_is_used_again(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(WHOLE, WHOLE, WHOLE)
        for _ in range(3):
            await caller.answer()
        assert (len(caller.server.requests), caller.server.server.connections_made) == (3, 1)


async def slow_bytes_are_no_failure(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        caller.server.script(*(caller.server.reply(WHOLE).slowly(piece=piece) for piece in (1, 7)))
        assert [(await caller.answer())[1].text for _ in range(2)] == [WHOLE.text] * 2


async def the_end_of_an_answer_is_not_that_of_its_stream(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        whole = caller.server.reply(WHOLE)
        everything = len(whole.chunks)
        caller.server.script(whole.cut_after(everything), whole.ending_after(everything))
        assert [(await caller.answer())[1].text for _ in range(2)] == [WHOLE.text] * 2


async def an_answer_that_ends_early_is_none_wherever_it_ends(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        whole = caller.server.reply(WHOLE)
        for chunks in range(len(whole.chunks)):
            caller.server.script(whole.ending_after(chunks), whole.cut_after(chunks))
            assert [(await caller.failure()).error_type for _ in range(2)] == ["connection"] * 2, (
                f"after {chunks} chunks"
            )
        assert len(caller.server.requests) == 2 * len(whole.chunks)


async def silence_is_a_timeout(make: Callable[[], FaultServer]) -> None:
    async with connected(make, silence_timeout=SILENCE_SECONDS) as caller:
        caller.server.script(caller.server.reply(WHOLE).silent_after(0), caller.server.reply(WHOLE).silent_after(2))
        for _ in range(2):
            error = await caller.failure()
            assert error.error_type == "timeout"
            assert error.message.endswith(f"sent nothing for {SILENCE_SECONDS:g} s")
        await caller.server.server.until(lambda: caller.server.server.left == 2)
        assert len(caller.server.requests) == 2


async def a_refused_connection_is_named_and_the_next_one_made(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        async with caller.server.server.refusing():
            assert (await caller.failure()).error_type == "connection"
        caller.server.script(WHOLE)
        await caller.answer()
        assert len(caller.server.requests) == 1


async def a_reader_that_leaves_closes_the_connection_at_once(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        server = caller.server.server
        caller.server.script(*(caller.server.reply(WHOLE).silent_after(chunks) for chunks in (2, 0)))
        for number in (1, 2):
            waiting = asyncio.ensure_future(caller.answer())
            await server.until(lambda number=number: server.silences == number)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            await server.until(lambda number=number: server.left == number)
        whole = caller.server.reply(WHOLE)
        caller.server.script(whole.silent_after(len(whole.chunks) - 1))
        async with aclosing(caller.stream()) as stream:
            await anext(stream)
        await server.until(lambda: server.left == 3)


async def waiting_times_are_read_in_every_form(make: Callable[[], FaultServer]) -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    forms = {
        ("retry-after-ms", "1500"): (1.5, 1.5),
        ("retry-after", "2"): (2, 2),
        ("retry-after", "86400"): (86_400, 86_400),
        ("retry-after", in_a_minute): (1, 60),
        ("retry-after", "Thu, 01 Jan 2015 00:00:00 GMT"): (0, 0),
    }
    async with connected(make) as caller:
        for (name, value), (least, most) in forms.items():
            caller.server.script(caller.server.fault("rate_limited", {name: value}))
            seconds = (await caller.failure()).retry_after
            assert seconds is not None
            assert least <= seconds <= most, f"{name}: {value} is {seconds}"
        for value, should_retry in (("true", True), ("false", False)):
            caller.server.script(caller.server.fault("overloaded", {"x-should-retry": value}))
            assert (await caller.failure()).should_retry is should_retry
        assert len(caller.server.requests) == len(forms) + 2


async def an_error_within_an_answer_has_its_type(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        for number, fault in enumerate(
            ("overloaded", "rate_limited", "provider_error", "context_too_long", "quota"), 1
        ):
            caller.server.script(caller.server.fault_within(fault))
            error = await caller.failure()
            assert (error.error_type, len(caller.server.requests)) == (fault, number)


async def a_page_is_judged_by_its_status(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        pages = {502: "provider_error", 503: "overloaded", 500: "provider_error"}
        for status, error_type in pages.items():
            caller.server.script(Reply.error(status, "<html>Sorry</html>"))
            assert (await caller.failure()).error_type == error_type


async def a_conversation_is_not_sent_to_where_the_address_redirects(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller, connected(make) as elsewhere:
        for number, status in enumerate((301, 302, 307, 308), 1):
            location = {"location": f"{elsewhere.server.base_url}/elsewhere"}
            caller.server.script(Reply.error(status, "<html>Moved</html>", location))
            error = await caller.failure()
            assert (error.error_type, elsewhere.server.requests) == ("bad_request", [])
            assert "redirects" in error.message
            assert len(caller.server.requests) == number


GARBLED = {
    "a page": Reply.error(200, "<html>Please sign in</html>"),
    "another object": Reply.error(200, {"object": "greeting", "choices": []}),
    "no content": Reply(status=204, headers=()),
    "broken JSON": Reply.stream([b'data: {"type": \n\n']),
    "no object": Reply.stream([b"data: [1]\n\n"]),
    "null": Reply.stream([b"data: null\n\n"]),
    "too deep": Reply.stream([b"data: " + b'{"a":' * 200 + b"1" + b"}" * 200 + b"\n\n"]),
    "without end": Reply.stream([b"data: " + b"[" * 100_000 + b"\n\n"]),
    "no number": Reply.stream([b'data: {"a": NaN}\n\n']),
    "a huge number": Reply.stream([b'data: {"a": ' + b"9" * 5_000 + b"}\n\n"]),
    "compressed": Reply.stream([b"data: x\n\n"], {"content-encoding": "gzip"}),
}


async def what_is_no_answer_is_an_error_of_the_vendor(make: Callable[[], FaultServer]) -> None:
    for what, reply in GARBLED.items():
        async with connected(make) as caller:
            caller.server.script(reply)
            error = await caller.failure()
            assert error.error_type == "provider_error", f"{what} is {error.error_type}"
            assert "answer could not be read" in error.message
            assert len(caller.server.requests) == 1


async def what_has_no_end_is_given_up(make: Callable[[], FaultServer]) -> None:
    endless = [b"x" * 65_536] * 200
    async with connected(make) as caller:
        caller.server.script(Reply.stream([b"data: ", *endless]))
        assert (await caller.failure()).error_type == "too_large"
        caller.server.script(Reply(chunks=(b'{"error": {"message": "prompt is too long ', *endless), status=400))
        error = await caller.failure()
        assert error.error_type == "context_too_long"
        assert len(error.message) < 600


async def no_error_repeats_a_text_of_the_request(make: Callable[[], FaultServer]) -> None:
    texts = ["I am the system prompt of Anna", "I ask about the letters of Berta", "I answer with the words of Clara"]
    messages = [
        ModelMessage(role="user", content=texts[1]),
        ModelMessage(role="assistant", content=texts[2]),
        ModelMessage(role="user", content="And now?"),
    ]
    model_request = ModelRequest(head=RequestHead(system=texts[0]), messages=messages)
    async with connected(make) as caller:
        for text in texts:
            for reply in (
                Reply.error(400, {"error": {"message": f"max_tokens: too many, in answer to “{text}”"}}),
                Reply.error(422, f"max_tokens: too many: {text}"),
            ):
                caller.server.refuse_always(reply)
                error = await caller.failure(model_request)
                assert "max_tokens: too many" in error.message, "the vendor's own words are gone"
                assert text not in error.message, f"it repeats {text!r}"


async def an_answer_that_breaks_off_has_cost_what_was_read_and_written(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        long = Answer(think="Where? " * 20, text="There is a chair. " * 50, input=300, cached=200, output=250)
        caller.server.script(caller.server.cut(long))
        await caller.failure()
        usage = caller.meter.usage(input_tokens=77)
        assert usage, "it has cost nothing"
        # Some vendors count the input at the beginning; the others say nothing before the end.
        assert (usage.input_tokens, usage.cached_tokens) in ((300, 200), (77, 0))
        assert usage.output_tokens or usage.input_tokens == 300
        caller.server.script(Answer(text="I won't.", stop="refusal", input=300, output=9))
        await caller.failure()
        usage = caller.meter.usage(input_tokens=77)
        assert usage
        assert (usage.input_tokens, usage.output_tokens, usage.estimated_tokens) == (300, 9, 0)


async def a_call_that_breaks_off_has_cost_its_arguments(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        whole = caller.server.reply(Answer(calls=[Call("c1", "look", {"at": "x" * 400})]))
        counts = []
        for chunks in range(1, len(whole.chunks) - 1):
            caller.server.script(whole.cut_after(chunks))
            await caller.failure()
            counts.append(caller.meter.written_chars)
        assert max(counts) > 200, "`arguments_in` does not find the arguments"


async def what_it_lacks_is_named(make: Callable[[], FaultServer]) -> None:
    async with connected(make) as caller:
        provider = caller.server.provider()
        nameless = provider.stream("", request(), CallInfo(session_id="s", request=1, attempt=1))
        try:
            await anext(nameless)
        except ModelError as error:
            assert error.error_type == "not_found", "a model without a name"
            assert f"'{provider.vendor.name}:{provider.vendor.example}'" in error.message
        else:
            raise AssertionError("a model without a name is asked")
        if package := provider.vendor.package:
            with patch.dict(sys.modules, {package: None}):
                missing = type(provider).missing(Settings())
                assert package in (missing or ("",))[0], "the doctor says nothing of the package"
                assert f"pip install 'turnkeeper[{package}]'" in (await caller.failure()).message
        assert caller.server.requests == []


EVERY_PROVIDER: Sequence[Check] = (
    it_says_what_there_is_to_know_of_its_vendor,
    an_answer_is_streamed_and_then_whole,
    what_was_answered_goes_back,
    another_apis_step_goes_to_it_without_its_state,
    arguments_that_are_no_object_stay_as_they_are,
    a_cut_answer_says_so_and_a_refusal_is_none,
    every_fault_has_its_type,
    a_time_to_wait_is_passed_on,
    an_answer_that_breaks_off_is_none,
)

OVER_HTTP: Sequence[Check] = (
    what_was_sent_stays_as_it_was,
    a_request_is_one_with_the_key,
    a_connection_is_used_again,
    slow_bytes_are_no_failure,
    the_end_of_an_answer_is_not_that_of_its_stream,
    an_answer_that_ends_early_is_none_wherever_it_ends,
    silence_is_a_timeout,
    a_refused_connection_is_named_and_the_next_one_made,
    a_reader_that_leaves_closes_the_connection_at_once,
    waiting_times_are_read_in_every_form,
    an_error_within_an_answer_has_its_type,
    a_page_is_judged_by_its_status,
    a_conversation_is_not_sent_to_where_the_address_redirects,
    what_is_no_answer_is_an_error_of_the_vendor,
    what_has_no_end_is_given_up,
    no_error_repeats_a_text_of_the_request,
    an_answer_that_breaks_off_has_cost_what_was_read_and_written,
    a_call_that_breaks_off_has_cost_its_arguments,
    what_it_lacks_is_named,
)


def checks_for(make: Callable[[], FaultServer]) -> Sequence[Check]:
    """Return the checks for the provider that asks this server."""
    return (*EVERY_PROVIDER, *OVER_HTTP) if isinstance(make(), VendorServer) else EVERY_PROVIDER


async def check_provider(make: Callable[[], FaultServer]) -> None:
    """Check the provider that asks this server. Raises the `AssertionError` of the first check that fails."""
    for check in checks_for(make):
        await check(make)
