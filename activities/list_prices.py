"""The cost of a model call: its tokens at the vendor's list price (AGT-10).

The prices are those of the installed release of genai-prices (extra `prices`); nothing is downloaded. They are list
prices in US dollars: no discount, no tax, no priority tier. They differ between releases, so a cost is computed once,
in the activity, and recorded; the workflow only adds up.

A cost is never guessed. It is unknown for a model that is not in the list, for contradictory token counts, and for a
vendor without `prices`, such as `openai-chat:`, where a model's name says nothing about its price. A provider that
knows the cost itself has already set it in `usage`.
"""

import logging
from functools import cached_property
from types import ModuleType

from turnkeeper.activities.providers.provider import provider_class
from turnkeeper.models.ids import providers
from turnkeeper.models.transcript.conversation import COST_DIGITS, Usage
from turnkeeper.models.transcript.model_call import ModelResponse

logger = logging.getLogger(__name__)


class ListPrices:
    """The vendors' list prices, loaded on first use: that takes a third of a second and 30 MB."""

    def priced(self, response: ModelResponse, *, model: str) -> ModelResponse:
        """Return the response with its cost in `usage`, if it is known.

        The price is that of the model which answered, according to the vendor; otherwise that of `model`.
        """
        usage = response.usage
        if usage is None or usage.cost is not None:
            return response
        provider, _, name = model.partition(":")
        cost = self.estimate_cost(usage, provider=provider, name=response.model or name)
        return response.model_copy(update={"usage": usage.model_copy(update={"cost": cost})})

    def estimate_cost(self, usage: Usage, *, provider: str, name: str) -> float | None:
        """Return the cost of one call of the model `name` in US dollars; `None` if it is unknown.

        Don't use it for sums of calls: long contexts have other prices.
        """
        vendor = provider_class(provider).vendor.prices if provider in providers() else None
        if not vendor or self._prices is None:
            return None
        try:
            tokens = self._prices.Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cached_tokens,
                cache_write_tokens=usage.cache_write_tokens,
            )
            calculation = self._prices.calc_price(tokens, name, provider_id=vendor)
        except (LookupError, ValueError):  # no such model; tokens that contradict each other
            return None
        price = calculation.model_price
        # Without a price per token the total would be 0, but such a model is paid for otherwise.
        if price.input_mtok is None or price.output_mtok is None:
            return None
        return round(float(calculation.total_price), COST_DIGITS)

    @cached_property
    def _prices(self) -> ModuleType | None:
        """The module genai_prices; `None` if it is not installed, which is logged once."""
        try:
            import genai_prices
        except ImportError:
            logger.warning("Costs are unknown: genai-prices is not installed (pip install 'turnkeeper[prices]')")
            return None
        return genai_prices
