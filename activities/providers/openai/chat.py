"""`openai-chat:` models of any endpoint with OpenAI's Chat Completions: Ollama, vLLM, a proxy (AGT-4).

With the protocol `native` the model gets its tools through the API; with `text` it gets conversation and tools as one
text (`text_protocol.py`, CTX-13). The SDK is imported on first use. What it finds in the environment for OpenAI itself,
above all a key, is never sent to another endpoint.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import ModuleType
from typing import Any, Literal

from turnkeeper.activities.providers.attachments.memory import AttachmentMemory
from turnkeeper.activities.providers.attachments.sight import FULL, TEXT_ONLY
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.openai.chat_answer import ChatAccumulator, TextChatAccumulator
from turnkeeper.activities.providers.openai.chat_request import (
    OPTIONAL,
    REASONING_ROOM,
    encode,
    encode_text,
    fields_in,
    missing_in,
    tool_names,
)
from turnkeeper.activities.providers.openai.tools import OmittedToolsLog
from turnkeeper.activities.providers.openai.unsupported_parameters import UnsupportedParameters, present_in
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.wire.answer_stream import stream_answer
from turnkeeper.activities.providers.wire.transport import Transport
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

ENDPOINT = Vendor(name="the endpoint of openai_chat.base_url", key="openai_chat.api_key", package="openai")
PATH = "/chat/completions"

USAGE_WAIT = 5.0
"""Seconds to wait after the end of an answer: for the usage, in a chunk of its own, and the end of the stream."""

_ABOUT_TOOLS = re.compile(
    r"support (?:for )?tools|tools? (?:is|are) not supported|tools param|tool[ _-](?:choice|calling|use)\b",
    re.IGNORECASE,
)
"""How endpoints say that a model doesn't support tool calling."""

_ABOUT_THE_BOUND = re.compile(r"max_(?:completion_)?tokens")


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
        and PDFs; `auto`: all are sent them, and those that refuse are remembered.

        Raises `ModelError` without a `base_url`.
        """
        if base_url is None:
            raise ModelError("bad_request", "set openai_chat.base_url, as in 'http://127.0.0.1:11434/v1' for Ollama")
        self._address = {"base_url": base_url, "api_key": api_key or "none"}
        self._protocol = protocol
        self._of_models, self._of_sessions = UnsupportedParameters(), UnsupportedParameters()
        self._omitted_tools = OmittedToolsLog()
        sight = TEXT_ONLY if images == "no" or protocol == "text" else FULL
        self._attachments = AttachmentMemory(lambda name: sight, learns_sight=images == "auto")
        self._transport = Transport(ENDPOINT, self._client, silence_timeout=silence_timeout, sends_key=bool(api_key))

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            raise ModelError("not_found", "write its name after the colon, as in 'openai-chat:qwen3'")
        encode_request, accumulator = (
            (encode_text, TextChatAccumulator) if self._protocol == "text" else (encode, ChatAccumulator)
        )
        self._omitted_tools.warn_once(request.head.tools)
        session = (name, info.session_id)
        extra_without: set[str] = set()
        while True:
            without = self._of_models.of(name) | self._of_sessions.of(session) | extra_without
            visible = self._attachments.show(name, request, session_id=info.session_id)
            body = encode_request(
                visible.request, name=name, without=without, required=self._of_sessions.required_of(session)
            )
            try:
                stream_request = self._transport.request(PATH, body)
                answer = accumulator(name, request=info.request, tools=tool_names(request))
                async with aclosing(
                    stream_answer(stream_request, answer, run_out=USAGE_WAIT, meter=info.meter)
                ) as pieces:
                    async for piece in pieces:
                        visible.note_accepted()
                        yield piece
            except ModelError as error:
                if visible.learn(error, body) or self._learn(error, body, name, session):
                    continue
                if REASONING_ROOM in extra_without or not _is_bound_too_high(error, request):
                    raise self._with_advice(error, request) from None
                extra_without.add(REASONING_ROOM)
            else:
                return

    def _learn(self, error: ModelError, body: Block, name: str, session: tuple[str, str]) -> bool:
        """Remember what the endpoint rejects or requires; return whether to send a changed request."""
        if self._of_models.learn(name, error, optional=present_in(body, OPTIONAL)):
            return True
        return self._of_sessions.learn(session, error, optional=fields_in(body), requirable=missing_in(body))

    def _with_advice(self, error: ModelError, request: ModelRequest) -> ModelError:
        """Return the error, with advice if the model doesn't support tools."""
        if error.error_type != "bad_request" or not request.head.tools or not _ABOUT_TOOLS.search(error.message):
            return error
        advice = "openai_chat.protocol='text' is for models without tool calling"
        message = f"{error.message}; {advice}"
        return ModelError(error.error_type, message, should_retry=error.should_retry, vendor=error.vendor)

    def _client(self, sdk: ModuleType, http: Any) -> Any:
        nothing = sdk.Omit()
        client = sdk.AsyncOpenAI(**self._address, http_client=http, max_retries=0)
        # Overrides `OPENAI_CUSTOM_HEADERS`, which the SDK offers no other way to ignore.
        client._custom_headers = {"OpenAI-Organization": nothing, "OpenAI-Project": nothing}
        return client


def _is_bound_too_high(error: ModelError, request: ModelRequest) -> bool:
    """Return whether the request may succeed with a lower limit of output tokens."""
    if request.head.max_tokens is None:
        return False
    is_blamed = _ABOUT_THE_BOUND.search(f"{error.parameter} {error.message}") is not None
    return error.error_type == "context_too_long" or (error.error_type == "bad_request" and is_blamed)
