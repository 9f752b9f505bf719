"""What a model call costs: its tokens at the vendor's list price (AGT-10).

The prices are those that come with the installed release of genai-prices (extra `prices`); nothing is ever fetched.
They are list prices of today, in US dollars: no discount, no tax, no priority tier. They differ from one release to the
next, so a cost is found once, here in the activity, and recorded; the workflow only adds up.

A cost is known or it is not: it is never guessed. Not known are the cost of a model that the list does not have, of
tokens that contradict each other, and of whatever is behind `openai-chat:`, since what an endpoint calls its models
says nothing of what it takes for them. A provider that knows the cost itself has said it in `usage` already.
"""

import logging
from functools import cached_property
from types import ModuleType

from turnkeeper.models.transcript.model_call import ModelResponse
from turnkeeper.models.transcript.trajectory import COST_DIGITS, Usage

logger = logging.getLogger(__name__)

_VENDORS = {"anthropic": "anthropic", "openai": "openai"}
"""How genai-prices calls the vendors of our providers."""


class ListPrices:
    """The vendors' list prices; read when the first is asked for, since that takes a third of a second and 30 MB."""

    def priced(self, response: ModelResponse, *, model: str) -> ModelResponse:
        """Return the response of the model `model` with its cost in `usage`, where that is known.

        The model is the one that the vendor says has answered.
        """
        usage = response.usage
        if usage is None or usage.cost is not None:
            return response
        provider, _, name = model.partition(":")
        cost = self.cost_of(usage, provider=provider, name=response.model or name)
        return response.model_copy(update={"usage": usage.model_copy(update={"cost": cost})})

    def cost_of(self, usage: Usage, *, provider: str, name: str) -> float | None:
        """Return what one call of the model `name` cost, in US dollars; `None` where that is not known.

        Of one call and not of a sum: long contexts have prices of their own.
        """
        vendor = _VENDORS.get(provider)
        if vendor is None or self._prices is None:
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
        # What has no price per token counts as nothing in the sum: such a model is paid for otherwise.
        if price.input_mtok is None or price.output_mtok is None:
            return None
        return round(float(calculation.total_price), COST_DIGITS)

    @cached_property
    def _prices(self) -> ModuleType | None:
        """The module genai_prices; `None` where it is not installed, which is logged this once."""
        try:
            import genai_prices
        except ImportError:
            logger.warning("Costs are not known: genai-prices is missing (pip install 'turnkeeper[prices]')")
            return None
        return genai_prices
