"""The cost of a call is known exactly or not at all (AGT-10)."""

import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turnkeeper.activities.list_prices import ListPrices
from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ModelResponse, RequestHead

ROOT = Path(__file__).parents[2]

USED = Usage(input_tokens=1_000, output_tokens=100, cached_tokens=300, cache_write_tokens=200, reasoning_tokens=40)


def cost(model: str, *, answered_by: str = "", usage: Usage = USED) -> float | None:
    response = ModelResponse(model=answered_by, usage=usage)
    priced = ListPrices().priced(response, model=model).usage
    assert priced is not None
    assert priced.model_copy(update={"cost": usage.cost}) == usage, "nothing but the cost is added"
    return priced.cost


def test_agt_10_input_cached_written_and_output_tokens_have_separate_prices() -> None:
    # 500 at $3, 300 read from the cache at $0.30, 200 written to it at $3.75, 100 at $15 a million; reasoning is output
    assert cost("anthropic:claude-sonnet-4-5") == 0.00384
    # 700 at $2.50, 300 read from the cache at $1.25, 100 at $10 a million; writing to the cache is free
    assert cost("openai:gpt-4o") == 0.003125


def test_agt_10_the_price_is_that_of_the_model_that_answered() -> None:
    assert cost("openai:gpt-4o", answered_by="gpt-4o-mini") == cost("openai:gpt-4o-mini")
    assert cost("openai:gpt-4o", answered_by="gpt-4o-2024-08-06") == cost("openai:gpt-4o")
    assert cost("openai:gpt-4o", answered_by="gpt-99-turbo") is None


def test_agt_10_a_long_context_costs_more_than_several_short_ones() -> None:
    long, short = Usage(input_tokens=400_000), Usage(input_tokens=100_000)
    assert cost("openai:gpt-5.5", usage=long) > 4 * cost("openai:gpt-5.5", usage=short)  # type: ignore[operator]


@pytest.mark.parametrize(
    "model",
    [
        "anthropic:claude-99-opus",
        "anthropic:gpt-4o",
        "anthropic:",
        "openai:gpt-4o-is-in-this-name",
        "openai:whisper-1",  # not paid for by tokens
        "openai:text-embedding-3-small",  # no price of output
        "openai-chat:gpt-4o",  # any server may have a model of that name
        "openai-chat:claude-sonnet-4-5",
        "elsewhere:gpt-4o",
    ],
)
def test_agt_10_an_unknown_cost_is_not_guessed(model: str) -> None:
    assert cost(model) is None


@pytest.mark.parametrize("usage", [Usage(input_tokens=10, cached_tokens=20), Usage(input_tokens=-1)])
def test_agt_10_contradictory_token_counts_have_no_cost(usage: Usage) -> None:
    assert cost("openai:gpt-4o", usage=usage) is None


def test_agt_10_a_cost_reported_by_the_provider_is_used() -> None:
    assert cost("openai:gpt-4o", usage=USED.model_copy(update={"cost": 0.25})) == 0.25


def test_agt_10_a_step_without_usage_has_no_cost() -> None:
    silent = ModelResponse(model="gpt-4o")
    assert ListPrices().priced(silent, model="openai:gpt-4o") == silent


def test_agt_10_the_offline_model_is_free() -> None:
    request = ModelRequest(head=RequestHead(), messages=[ModelMessage(role="user", content="hello")])
    usage = answer(request).usage
    assert usage is not None
    assert (usage.tokens > 0, usage.cost) == (True, 0.0)


def test_agt_10_no_price_is_ever_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a connection is made")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert cost("anthropic:claude-sonnet-5-5") == 0.00253
    from genai_prices import data_snapshot

    assert not data_snapshot.get_snapshot().from_auto_update


def test_agt_10_without_the_extra_there_are_no_costs_and_this_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    prices = ListPrices()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert prices.estimate_cost(USED, provider="openai", name="gpt-4o") is None
    assert [record.message for record in caplog.records] == [
        "Costs are unknown: genai-prices is not installed (pip install 'turnkeeper[prices]')"
    ]


def test_agt_10_a_worker_that_needs_no_prices_does_not_load_them() -> None:
    script = """if True:
        import sys
        from turnkeeper.activities.list_prices import ListPrices
        from turnkeeper.models.transcript.conversation import Usage
        ListPrices().estimate_cost(Usage(), provider="openai-chat", name="gpt-4o")
        print("genai_prices" in sys.modules)
        ListPrices().estimate_cost(Usage(), provider="openai", name="gpt-4o")
        print("genai_prices" in sys.modules)
    """
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_agt_10_costs_add_up_without_binary_rounding_noise() -> None:
    total = Usage()
    for _ in range(1_000):
        total += Usage(output_tokens=1, cost=0.1)
    assert (total.cost, total.tokens) == (100.0, 1_000)
    assert (Usage(cost=0.000000001) + Usage(cost=0.2)).cost == 0.200000001
