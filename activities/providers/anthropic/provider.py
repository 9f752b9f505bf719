"""`anthropic:` models, through Anthropic's Messages API (AGT-4). The SDK is imported on first use."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import ModuleType
from typing import Any

from turnkeeper.activities.providers.anthropic.answer import AnthropicAccumulator
from turnkeeper.activities.providers.anthropic.request import encode
from turnkeeper.activities.providers.attachments.sight import claude_sight
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.refused_parts.api import Body, Parts, RefusableApi
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts
from turnkeeper.activities.providers.wire.answer_stream import stream_answer
from turnkeeper.activities.providers.wire.transport import Transport
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

ANTHROPIC = Vendor(name="Anthropic", key="ANTHROPIC_API_KEY", package="anthropic")
PATH = "/v1/messages"

_API = RefusableApi(
    sight_of=claude_sight,
    bounds=("max_tokens",),
    needed=frozenset({"max_tokens"}),
    in_blocks=frozenset({"cache_control", "title"}),
    wordings={
        "thinking": re.compile(r"(?:adaptive|extended|enabled) thinking|thinking\.type|budget_tokens", re.IGNORECASE),
        "thinking.display": re.compile(r"thinking\.(?:\w+\.)?display"),
    },
)


class AnthropicProvider:
    """Claude, and other models behind an endpoint with Anthropic's API."""

    def __init__(self, *, silence_timeout: float, base_url: str | None = None, api_key: str | None = None) -> None:
        """Send requests to `base_url` with `api_key`; `None`: from the environment (`ANTHROPIC_BASE_URL`, …).

        `silence_timeout`: for how many seconds the vendor may send nothing.
        """
        self._address: dict[str, Any] = {"base_url": base_url, "api_key": api_key}
        self._transport = Transport(ANTHROPIC, self._client, silence_timeout=silence_timeout)
        self.refused = RefusedParts(_API)

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            raise ModelError("not_found", "write its name after the colon, as in 'anthropic:claude-sonnet-5-5'")

        def send(body: Body) -> AsyncGenerator[Delta | ModelResponse, None]:
            return stream_answer(self._transport.request(PATH, body), AnthropicAccumulator(name), meter=info.meter)

        def encode_trimmed(trimmed: ModelRequest, parts: Parts) -> Body:
            return encode(trimmed, name=name)

        async with aclosing(self.refused.answer(name, request, info, encode_trimmed, send)) as answer:
            async for piece in answer:
                yield piece

    def _client(self, sdk: ModuleType, http: Any) -> Any:
        # The SDK's own tracing is off: tracing is configured in one place.
        client = sdk.AsyncAnthropic(**self._address, http_client=http, max_retries=0, open_telemetry=False)
        if not (client.api_key or client.auth_token or client.credentials):
            raise self._transport.no_key()
        return client
