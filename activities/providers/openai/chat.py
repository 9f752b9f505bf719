"""`openai-chat:` models of any endpoint with OpenAI's Chat Completions: Ollama, vLLM, a proxy (AGT-4).

With the protocol `native` the model gets its tools through the API; with `text` it gets conversation and tools as one
text (`text_protocol.py`, CTX-13). The SDK is imported on first use. What it finds in the environment for OpenAI itself,
above all a key, is never sent to another endpoint.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

from turnkeeper.activities.providers.attachments.sight import FULL, TEXT_ONLY
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.openai.chat_answer import ChatAccumulator, TextChatAccumulator
from turnkeeper.activities.providers.openai.chat_request import encode, encode_text, fields_in, missing_in, tool_names
from turnkeeper.activities.providers.openai.tools import OmittedToolsLog
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.refused_parts.api import Body, Parts, RefusableApi
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts
from turnkeeper.activities.providers.wire.answer_stream import stream_answer
from turnkeeper.activities.providers.wire.transport import Transport
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

ENDPOINT = Vendor(name="the endpoint of openai_chat.base_url", key="openai_chat.api_key", package="openai")
PATH = "/chat/completions"

USAGE_WAIT = 5.0
"""Seconds to wait after the end of an answer: for the usage, in a chunk of its own, and the end of the stream."""

_API = RefusableApi(
    sight_of=lambda name: FULL,
    bounds=("max_tokens", "max_completion_tokens"),
    replacements={"max_tokens": "max_completion_tokens"},
    fields_in=fields_in,
    missing_in=missing_in,
    advice_without_tools="openai_chat.protocol='text' is for models without tool calling",
)


class OpenAIChatProvider:
    """The models of one endpoint."""

    def __init__(
        self,
        *,
        silence_timeout: float,
        base_url: str | None,
        api_key: str | None = None,
        protocol: Literal["native", "text"] = "native",
        images: Literal["auto", "yes", "no"] = "auto",
    ) -> None:
        """Send requests to `base_url`, which includes the API's version. Without `api_key` no key is sent.

        `silence_timeout`: for how many seconds the endpoint may send nothing. `images`: whether its models read images
        and PDFs; `auto`: all are sent them, and those that refuse are remembered; `yes`: a refusal is of that content.

        Raises `ModelError` without a `base_url`.
        """
        if base_url is None:
            raise ModelError("bad_request", "set openai_chat.base_url, as in 'http://127.0.0.1:11434/v1' for Ollama")
        self._address = {"base_url": base_url, "api_key": api_key or "none"}
        self._protocol = protocol
        self._omitted_tools = OmittedToolsLog()
        sight = TEXT_ONLY if images == "no" or protocol == "text" else FULL
        self.refused = RefusedParts(replace(_API, sight_of=lambda name: sight, learns_sight=images == "auto"))
        self._transport = Transport(ENDPOINT, self._client, silence_timeout=silence_timeout, sends_key=bool(api_key))

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            raise ModelError("not_found", "write its name after the colon, as in 'openai-chat:qwen3'")
        is_native = self._protocol == "native"
        self._omitted_tools.warn_once(request.head.tools)

        def encode_trimmed(trimmed: ModelRequest, parts: Parts) -> Body:
            if not is_native:
                return encode_text(trimmed, name=name)
            return encode(trimmed, name=name, without=parts.omitted_fields, required=parts.required_fields)

        def send(body: Body) -> AsyncGenerator[Delta | ModelResponse, None]:
            answer = (ChatAccumulator if is_native else TextChatAccumulator)(
                name, request=info.request, tools=tool_names(request)
            )
            return stream_answer(self._transport.request(PATH, body), answer, run_out=USAGE_WAIT, meter=info.meter)

        async with aclosing(self.refused.answer(name, request, info, encode_trimmed, send)) as pieces:
            async for piece in pieces:
                yield piece

    def _client(self, sdk: ModuleType, http: Any) -> Any:
        nothing = sdk.Omit()
        client = sdk.AsyncOpenAI(**self._address, http_client=http, max_retries=0)
        # Overrides `OPENAI_CUSTOM_HEADERS`, which the SDK offers no other way to ignore.
        client._custom_headers = {"OpenAI-Organization": nothing, "OpenAI-Project": nothing}
        return client
