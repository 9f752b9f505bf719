"""What the AI SDK's client makes of a stream of chunks (`processUIMessageStream` of `ai` 7)."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter

from turnkeeper.features.ai_sdk.chunks import UIMessageChunk

SCHEMA: TypeAdapter[Any] = TypeAdapter(UIMessageChunk)


class Reader:
    """A message as a client holds it. Raises `AssertionError` for a chunk that can't come now."""

    def __init__(self, message: dict[str, Any] | None = None) -> None:
        """Go on with a message that is held."""
        self.message = deepcopy(message) if message else {"id": None, "role": "assistant", "parts": []}
        self.failure: str | None = None
        self.finish_reason: str | None = None
        self.was_aborted = False
        self.is_in_step = False
        self._active: dict[tuple[str, str], dict[str, Any]] = {}
        self._has_started = False

    @property
    def parts(self) -> list[dict[str, Any]]:
        return self.message["parts"]

    def read(self, chunks: Iterable[Any]) -> "Reader":
        for chunk in chunks:
            SCHEMA.validate_python(chunk)
            assert self.finish_reason is None, f"{chunk} after the end"
            assert self._has_started or chunk["type"] in ("start", "error", "data-notice"), f"{chunk} before the start"
            getattr(self, chunk["type"].replace("-", "_"))(chunk)
        return self

    def assert_balanced(self) -> None:
        """Nothing is left open."""
        assert not self._active
        assert not self.is_in_step

    # ---- frame

    def start(self, chunk: Any) -> None:
        assert not self._has_started
        self._has_started = True
        self.message["id"] = chunk["messageId"]

    def start_step(self, chunk: Any) -> None:
        assert not self.is_in_step
        self.is_in_step = True
        self.parts.append({"type": "step-start"})

    def finish_step(self, chunk: Any) -> None:
        assert self.is_in_step
        self.assert_nothing_active()
        self.is_in_step = False

    def reset_step(self, chunk: Any) -> None:
        assert self.is_in_step
        last = max(index for index, part in enumerate(self.parts) if part["type"] == "step-start")
        del self.parts[last + 1 :]
        self._active = {}

    def finish(self, chunk: Any) -> None:
        assert not self.is_in_step
        self.finish_reason = chunk["finishReason"]

    def abort(self, chunk: Any) -> None:
        self.was_aborted = True

    def error(self, chunk: Any) -> None:
        self.failure = chunk["errorText"]

    def data_notice(self, chunk: Any) -> None:
        assert chunk["transient"], "it is part of no message"

    def steering_message(self, chunk: Any) -> None:
        assert not self.is_in_step, "a step's reset would take it away"
        self.parts.append({"type": "steering-message", "id": chunk["id"], "text": chunk["parts"][0]["text"]})

    def assert_nothing_active(self) -> None:
        assert not self._active

    # ---- text

    def _begin(self, kind: str, chunk: Any) -> None:
        assert self.is_in_step
        assert (kind, chunk["id"]) not in self._active
        part = self._active[kind, chunk["id"]] = {"type": kind, "text": ""}
        self.parts.append(part)

    def _go_on(self, kind: str, chunk: Any) -> None:
        assert chunk["delta"]
        self._active[kind, chunk["id"]]["text"] += chunk["delta"]

    def _stop(self, kind: str, chunk: Any) -> None:
        del self._active[kind, chunk["id"]]

    def reasoning_start(self, chunk: Any) -> None:
        self._begin("reasoning", chunk)

    def reasoning_delta(self, chunk: Any) -> None:
        self._go_on("reasoning", chunk)

    def reasoning_end(self, chunk: Any) -> None:
        self._stop("reasoning", chunk)

    def text_start(self, chunk: Any) -> None:
        self._begin("text", chunk)

    def text_delta(self, chunk: Any) -> None:
        self._go_on("text", chunk)

    def text_end(self, chunk: Any) -> None:
        self._stop("text", chunk)

    # ---- tools

    def _tool(self, call_id: str) -> dict[str, Any]:
        return next(part for part in reversed(self.parts) if part.get("toolCallId") == call_id)

    def _approval(self, approval_id: str) -> dict[str, Any]:
        return next(part for part in self.parts if part.get("approval", {}).get("id") == approval_id)

    def tool_input_start(self, chunk: Any) -> None:
        assert self.is_in_step
        self.parts.append(
            {
                "type": "dynamic-tool",
                "toolCallId": chunk["toolCallId"],
                "toolName": chunk["toolName"],
                "state": "input-streaming",
            }
        )

    def tool_input_available(self, chunk: Any) -> None:
        assert self.is_in_step
        last = max(index for index, part in enumerate(self.parts) if part["type"] == "step-start")
        part = next((part for part in self.parts[last:] if part.get("toolCallId") == chunk["toolCallId"]), None)
        if part is None:
            assert not any(part.get("toolCallId") == chunk["toolCallId"] for part in self.parts), "a call is told twice"
            self.parts.append(part := {"type": "dynamic-tool", "toolCallId": chunk["toolCallId"]})
        part |= {"toolName": chunk["toolName"], "state": "input-available", "input": chunk["input"]}

    def tool_approval_request(self, chunk: Any) -> None:
        part = self._tool(chunk["toolCallId"])
        assert part["state"] == "input-available"
        part |= {"state": "approval-requested", "approval": {"id": chunk["approvalId"]}}

    def tool_approval_response(self, chunk: Any) -> None:
        part = self._approval(chunk["approvalId"])
        assert part["state"] in ("approval-requested", "approval-responded")
        part["state"] = "approval-responded"
        part["approval"] |= {"approved": chunk["approved"]}

    def tool_output_available(self, chunk: Any) -> None:
        self._tool(chunk["toolCallId"]).update({"state": "output-available", "output": chunk["output"]})

    def tool_output_error(self, chunk: Any) -> None:
        self._tool(chunk["toolCallId"]).update({"state": "output-error", "errorText": chunk["errorText"]})

    def tool_output_denied(self, chunk: Any) -> None:
        part = self._tool(chunk["toolCallId"])
        assert part["approval"]["approved"] is False
        part["state"] = "output-denied"
