"""`openai:` models, through OpenAI's Responses API (AGT-4). The SDK is imported on first use."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import ModuleType
from typing import Any

from turnkeeper.activities.providers.attachments.sight import gpt_sight
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.openai.responses_answer import ResponsesAccumulator
from turnkeeper.activities.providers.openai.responses_request import encode
from turnkeeper.activities.providers.openai.tools import OmittedToolsLog
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.refused_parts.api import Body, Parts, RefusableApi
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts
from turnkeeper.activities.providers.wire.answer_stream import stream_answer
from turnkeeper.activities.providers.wire.transport import Transport
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

OPENAI = Vendor(
    name="OpenAI",
    key="OPENAI_API_KEY",
    package="openai",
    no_path_advice=" (one without /responses is for 'openai-chat:')",
)
PATH = "/responses"

_API = RefusableApi(
    sight_of=gpt_sight,
    bounds=("max_output_tokens",),
    # Without `store`, OpenAI would store the conversation.
    only_named=frozenset({"store", "strict", "detail"}),
    in_blocks=frozenset({"strict", "detail"}),
)


class OpenAIProvider:
    """The models behind `openai:`."""

    def __init__(self, *, silence_timeout: float, base_url: str | None = None, api_key: str | None = None) -> None:
        """Send requests to `base_url` with `api_key`; `None`: from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

        `silence_timeout`: for how many seconds the vendor may send nothing.
        """
        self._address = {"base_url": base_url, "api_key": api_key}
        self._transport = Transport(OPENAI, self._client, silence_timeout=silence_timeout)
        self.refused = RefusedParts(_API)
        self._omitted_tools = OmittedToolsLog()

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            raise ModelError("not_found", "write its name after the colon, as in 'openai:gpt-5.5'")
        self._omitted_tools.warn_once(request.head.tools)

        def encode_trimmed(trimmed: ModelRequest, parts: Parts) -> Body:
            return encode(trimmed, name=name, session_id=info.session_id)

        def send(body: Body) -> AsyncGenerator[Delta | ModelResponse, None]:
            return stream_answer(self._transport.request(PATH, body), ResponsesAccumulator(name), meter=info.meter)

        async with aclosing(self.refused.answer(name, request, info, encode_trimmed, send)) as answer:
            async for piece in answer:
                yield piece

    def _client(self, sdk: ModuleType, http: Any) -> Any:
        client = sdk.AsyncOpenAI(**self._address, http_client=http, max_retries=0)
        if not client.api_key:
            raise self._transport.no_key()
        return client
