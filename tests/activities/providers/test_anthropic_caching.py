"""Which part of a session's requests Anthropic reads from its cache: AGT-4, *Caching*."""

import pytest

from tests.models.builders import NOW, answer_turn, evict, send, session
from tests.models.context.test_model_view import run_step
from tests.vendors.anthropic_cache import Counted, PromptCache
from tests.vendors.anthropic_wire import MODEL, AnthropicWire
from turnkeeper.activities.providers.anthropic.request import encode
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest, RequestHead, ToolSpec

HEAD = RequestHead(
    system="Be careful. " * 400,
    tools=[ToolSpec(name="look", description="Look at a thing. " * 20, input_schema={"type": "object"})],
)


def wide_turn(*, steps: int, calls: int, thinks: bool = False, text: str = "hello") -> list[list[ModelMessage]]:
    """Return the messages of each request of a turn that makes `calls` calls in each of `steps` steps."""
    messages = [ModelMessage(role="user", content=text)]
    requests = [list(messages)]
    for step in range(steps):
        ids = [f"toolu_{step}_{call}" for call in range(calls)]
        parts = [CallPart(kind="call", id=call_id, name="look", args={"at": call_id}) for call_id in ids]
        messages.append(ModelMessage(role="assistant", content="I look." if thinks else "", tool_calls=parts))
        messages += [
            ModelMessage(role="tool", call_id=call_id, tool_name="look", status="ok", content="a chair " * 20)
            for call_id in ids
        ]
        requests.append(list(messages))
    return requests


def ask_cache(cache: PromptCache, messages: list[ModelMessage], head: RequestHead = HEAD) -> Counted:
    body = encode(ModelRequest(head=head, messages=messages), name=MODEL)
    AnthropicWire().check(body)
    return cache.ask(body)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("calls", [1, 4, 9, 12, 40])
def test_agt_4_the_previous_request_is_read_from_the_cache_after_any_number_of_calls(
    calls: int, *, thinks: bool
) -> None:
    cache = PromptCache()
    for messages in wide_turn(steps=8, calls=calls, thinks=thinks):
        ask_cache(cache, messages)
    first, *later = cache.requests
    assert (first.read, first.uncached) == (0, 0)
    before = first
    for request in later:
        assert request.read == before.total, "all of the request before, and no more"
        assert request.uncached == 0
        before = request
    if calls == 12:
        everything = sum(request.total for request in cache.requests)
        assert sum(request.read for request in cache.requests) > 0.75 * everything
        assert sum(request.relative_price for request in cache.requests) < 0.4 * everything


def test_agt_4_sessions_with_the_same_system_prompt_and_tools_share_them() -> None:
    cache = PromptCache()
    (first,), (second,), (other,) = (wide_turn(steps=0, calls=0, text=text) for text in ("Hi", "Hello", "Hey"))
    ask_cache(cache, first)
    fixed = ask_cache(cache, second)
    assert fixed.read > 0.95 * fixed.total
    assert ask_cache(cache, other, HEAD.model_copy(update={"system": "Be quick. " * 500})).read == 0


def test_agt_4_an_eviction_invalidates_only_the_cache_after_the_head() -> None:
    """The parts that stay before the evicted ones (system prompt, tools, the first message) are read from the cache."""
    target = session(history={"max_messages": 30, "preserve_last_n": 6})
    cache = PromptCache()
    evictions = 0
    send(target, "What is there? " * 300, id="m0")
    answer_turn(target)
    send(target, "the long one", id="m1")
    target.begin_turn(now=NOW)
    segment = target.context.view.segment
    for _ in range(60):
        evict(target)
        counted = ask_cache(cache, target.context.view.request(HEAD).messages)
        if target.context.view.segment != segment:
            evictions += 1
            head = -(-len("What is there? " * 300) // 4) + len(HEAD.system) // 4
            assert counted.read >= head
        segment = target.context.view.segment
        run_step(target)
    assert evictions > 3


def test_agt_4_a_turn_without_tools_and_instructions_is_cached_too() -> None:
    cache = PromptCache()
    messages = [ModelMessage(role="user", content="word " * 2_000)]
    ask_cache(cache, messages, RequestHead())
    messages += [ModelMessage(role="assistant", content="ok"), ModelMessage(role="user", content="and now?")]
    assert ask_cache(cache, messages, RequestHead()).read > 2_000
    assert ask_cache(PromptCache(), messages, HEAD.model_copy(update={"system": ""})).created > 2_000


def test_agt_4_one_time_requests_are_not_written_to_the_cache() -> None:
    head = HEAD.model_copy(update={"max_tokens": 1_024})
    counted = ask_cache(PromptCache(), [ModelMessage(role="user", content="Summarise.")], head)
    assert counted.created == 0
