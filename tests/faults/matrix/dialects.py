"""Rows of answers as servers stream them, whole or broken (F5, F6, F9, L7, L10, L14)."""

import json
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from tests.faults.matrix.parts import CHAT
from tests.faults.matrix.playing import Play, Row, RowSession, is_answered
from tests.vendors import anthropic_wire
from tests.vendors.flavours.fleet import Override
from tests.vendors.flavours.rules import Body
from tests.vendors.media import PNG, base64_of
from turnkeeper.testing.vendor_server import Answer, Reply

Calls = list[tuple[str, dict[str, Any]]]

B = '{"at": "b"}'
LOOK = {"name": "look", "arguments": B}


def piece(name: str | None = None, arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**fields, "function": function}


def stream(*deltas: dict[str, Any], finish: str | None = "tool_calls", choice: dict[str, Any] | None = None) -> Reply:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None, **(choice or {})}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return Reply.stream([f"data: {json.dumps(each)}\n\n".encode() for each in (*chunks, end)] + [b"data: [DONE]\n\n"])


def calls(*chunks: list[dict[str, Any]], finish: str = "tool_calls") -> Reply:
    return stream(*({"tool_calls": pieces} for pieces in chunks), finish=finish)


BOTH: Calls = [("pay", {"at": "a"}), ("look", {"at": "b"})]
ONE: Calls = [("look", {"at": "b"})]
A = '{"at": "a"}'

CALLS: dict[str, tuple[Reply, Calls]] = {
    "all numbered 0, ids empty": (
        calls([piece("pay", A, index=0, id="")], [piece("look", B, index=0, id="")]),
        BOTH,
    ),
    "all numbered 0, no ids": (calls([piece("pay", A, index=0)], [piece("look", B, index=0)]), BOTH),
    "ids of null": (calls([piece("pay", A, index=0, id=None)], [piece("look", B, index=0, id=None)]), BOTH),
    "in one chunk": (calls([piece("pay", A, index=0), piece("look", B, index=0)]), BOTH),
    "no index": (calls([piece("pay", A)], [piece("look", B)]), BOTH),
    "one id for both": (calls([piece("pay", A, index=0, id="c")], [piece("look", B, index=1, id="c")]), BOTH),
    "numbers as text": (calls([piece("pay", A, index="0", id=17)], [piece("look", B, index="1", id=18)]), BOTH),
    "a name in pieces": (
        calls([piece("lo", index=0, id="c")], [piece("ok", index=0)], [piece(None, B, index=0)]),
        ONE,
    ),
    "the name in every chunk": (
        calls([piece("look", "", index=0, id="c")], [piece("look", B[:6], index=0)], [piece("look", B[6:], index=0)]),
        ONE,
    ),
    "all so far each time": (
        calls([piece("look", '{"a', index=0)], [piece(None, '{"at": "', index=0)], [piece(None, B, index=0)]),
        ONE,
    ),
    "all again at the end": (
        calls([piece("look", '{"a', index=0)], [piece(None, 't": "b"}', index=0)], [piece(None, B, index=0)]),
        ONE,
    ),
    "the whole call twice": (calls([piece("look", B, index=0)], [piece("look", B, index=0)]), ONE),
    "finished by stop": (calls([piece("look", B, index=0, id="c")], finish="stop"), ONE),
    "an old function call": (stream({"function_call": LOOK}, finish="function_call"), ONE),
    "a call of null beside": (calls([None, piece("look", B, index=0, id="c")]), ONE),  # type: ignore[list-item]
    "as text in tags": (stream({"content": f'<tool_call>{{"name": "look", "arguments": {B}}}</tool_call>'}), ONE),
    "choice index as text": (
        stream({"tool_calls": [piece("look", B, index=0, id="c")]}, choice={"index": "0"}),
        ONE,
    ),
}
"""Answers with calls, and the calls that they are."""

DONE_TEXT = "Answer p1."
TEXTS: dict[str, Reply] = {
    "text of the choice": stream({}, choice={"text": DONE_TEXT}, finish="stop"),
    "only in reasoning_content": stream({"reasoning_content": DONE_TEXT}, finish="stop"),
    "think tags": stream({"content": "<think>Hm.</think>"}, {"content": DONE_TEXT}, finish="stop"),
    "thinking tags": stream({"content": "<thinking>Hm.</thinking>\n"}, {"content": DONE_TEXT}, finish="stop"),
    "a think tag without a beginning": stream({"content": "Hm.\n</think>\n\n"}, {"content": DONE_TEXT}, finish="stop"),
    "THINK in brackets": stream({"content": "[THINK]Hm.[/THINK]"}, {"content": DONE_TEXT}, finish="stop"),
    "parts of Magistral": stream(
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
        {"content": [{"type": "text", "text": DONE_TEXT}]},
        finish="stop",
    ),
    "content as parts": stream({"content": [{"type": "text", "text": DONE_TEXT}]}, finish="stop"),
    "no usage, numbers as ids": stream({"role": "assistant", "content": DONE_TEXT, "id": 7}, finish="stop"),
    "harmony tokens": stream(
        {"content": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"},
        {"content": DONE_TEXT},
        finish="stop",
    ),
    "image beside the text": stream(
        {"content": DONE_TEXT},
        {"images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(PNG)}"}}]},
        finish="stop",
    ),
    "citations beside the text": stream(
        {"content": DONE_TEXT, "annotations": [{"type": "url_citation", "url_citation": {"url": "https://a.example"}}]},
        finish="stop",
    ),
}
"""Answers that are `Answer p1.`, whatever is around it."""


def plays_calls(reply: Reply, expected: Calls) -> Play:
    async def play(run: RowSession) -> None:
        run.line.override = lambda body, number: reply if number == 0 else None
        assert is_answered(await run.turn("p1")), run.turns[-1].error
        step = run.turns[-1].steps[0]
        assert step.kind == "model"
        ran = [(call.name, call.args) for call in step.tool_calls]
        assert ran == expected, ran
        assert all(call.result and call.result.status == "ok" for call in step.tool_calls), step.tool_calls
        run.line.override = None
        assert is_answered(await run.turn("p2", ["look"])), run.turns[-1].error

    return play


def plays_text(reply: Reply) -> Play:
    async def play(run: RowSession) -> None:
        run.line.override = lambda body, number: reply if number < 2 else None
        assert is_answered(await run.turn("p1")), (run.turns[-1].error, run.turns[-1].agent_message)
        run.line.override = None
        assert is_answered(await run.turn("p2", ["look"])), run.turns[-1].error

    return play


# ---- broken answers and faults that pass

Break = Callable[[Reply], Reply]

AT_ONCE = {"retry-after-ms": "1"}
PASSING: dict[str, Reply | Break] = {
    "429 with retry-after-ms": Reply.error(429, {"error": {"message": "Too many requests"}}, AT_ONCE),
    "429 with seconds": Reply.error(429, {"error": {"message": "Too many requests"}}, {"retry-after": "0"}),
    "429 with a duration": Reply.error(429, {"error": {"message": "Slow down"}}, {"retry-after": "PT0.1S"}),
    "529": Reply.error(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, AT_ONCE),
    "503 page": Reply.error(503, "<html><h1>503 Service Unavailable</h1></html>"),
    "502 page": Reply.error(502, "<html><h1>502 Bad Gateway</h1></html>"),
    "500 without a body": Reply.error(500, ""),
    "408": Reply.error(408, {"error": {"message": "Request timed out"}}),
    "409": Reply.error(409, {"error": {"message": "Conflict"}}),
    "498": Reply.error(498, {"error": {"message": "Flex tier capacity exceeded", "code": "capacity_exceeded"}}),
    "200 page": Reply.error(200, "<html>Welcome</html>"),
    "200 without a body": Reply.stream([]),
    "cut before the first event": lambda whole: whole.cut_after(0),
    "cut in the middle": lambda whole: whole.cut_after(2),
    "a clean end in the middle": lambda whole: whole.ending_after(2),
    "an event that is no JSON": lambda whole: Reply.stream([*whole.chunks[:2], b'data: {"a\n\n']),
    "an event that is a list": lambda whole: Reply.stream([*whole.chunks[:2], b"data: [1]\n\n"]),
    "a deep event": lambda whole: Reply.stream([*whole.chunks[:1], b"data: " + b"[" * 5_000 + b"\n\n"]),
    "an error within": lambda whole: Reply.stream(
        [*whole.chunks[:2], b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", '
         b'"message": "Overloaded"}, "code": "server_error", "message": "Overloaded"}\n\n']
    ),
}  # fmt: skip
"""Faults that are gone at the second attempt."""

HARMLESS: dict[str, Break] = {
    "one byte at a time": lambda whole: whole.slowly(piece=1),
    "CRLF": lambda whole: Reply.stream([chunk.replace(b"\n", b"\r\n") for chunk in whole.chunks]),
    "comments": lambda whole: Reply.stream([b": ping\n\n" + chunk for chunk in whole.chunks]),
    "a BOM": lambda whole: Reply.stream([b"\xef\xbb\xbf" + whole.chunks[0], *whole.chunks[1:]]),
    "octet-stream": lambda whole: whole.with_headers({"content-type": "application/octet-stream"}),
    "the last blank line missing": lambda whole: Reply.stream(
        [*whole.chunks[:-1], whole.chunks[-1].removesuffix(b"data: [DONE]\n\n").rstrip(b"\n")]
    ),
}
"""Streams in unusual forms that are whole answers."""

WIRES = ("anthropic", "openai", "openai-chat", "gemini", "mistral", "anthropic-compatible")


def plays_fault(fault: Reply | Break, flavour: str, *, times: int = 1) -> Play:
    async def play(run: RowSession) -> None:
        def override(body: Body, number: int) -> Reply | None:
            if number >= times:
                return None
            whole = run.line.render(Answer(text="Answer p1."), body, flavour=flavour)
            return fault if isinstance(fault, Reply) else fault(whole)

        await run.turn("p0")  # a page in place of the first answer of all would be a wrong address
        run.line.override = override
        assert is_answered(await run.turn("p1")), run.turns[-1].error
        run.line.override = None
        assert is_answered(await run.turn("p2", ["look"])), run.turns[-1].error

    return play


def plays_silence(override: Override) -> Play:
    """F9: an answer that never comes is named, and the next turn is answered."""

    async def play(run: RowSession) -> None:
        run.line.override = override
        turn = await run.turn("p1")
        assert "limits.model_timeout" in (turn.error or ""), turn.error
        run.line.override = None
        assert is_answered(await run.turn("p2", ["look"])), run.turns[-1].error

    return play


def arguments_again(body: Body, number: int) -> Reply | None:
    """F6 behind a proxy with Anthropic's API: the arguments are sent whole at the end."""
    if number:
        return None
    start, deltas = anthropic_wire.tool_use(anthropic_wire.Call("toolu_1", "look", {"at": "b"}))
    deltas.append({"type": "input_json_delta", "partial_json": B})
    events = [anthropic_wire.message_start(), *anthropic_wire.block_events(0, start, deltas)]
    return anthropic_wire.stream(*events, *anthropic_wire.message_end("tool_use"), is_known=False)


def plays_arguments_again() -> Play:
    async def play(run: RowSession) -> None:
        run.line.override = arguments_again
        assert is_answered(await run.turn("p1")), run.turns[-1].error
        step = run.turns[-1].steps[0]
        assert step.kind == "model"
        assert [(call.name, call.args) for call in step.tool_calls] == ONE
        run.line.override = None
        assert is_answered(await run.turn("p2", ["look"])), run.turns[-1].error

    return play


def rows() -> Iterator[Row]:
    flavours = cycle(CHAT)
    for name, (reply, expected) in CALLS.items():
        for _ in range(3):
            yield Row(f"calls: {name}", next(flavours), plays_calls(reply, expected))
    for name, reply in TEXTS.items():
        for _ in range(2):
            yield Row(f"text: {name}", next(flavours), plays_text(reply))
    for name, fault in {**PASSING, **HARMLESS}.items():
        for flavour in WIRES:
            yield Row(f"fault: {name}", flavour, plays_fault(fault, flavour))
    for flavour in ("anthropic-compatible", "claude-4.5"):
        yield Row("calls: arguments again", flavour, plays_arguments_again())
    pings = Reply.stream([b": ping\n\n"]).silent_after(1)
    for flavour in ("anthropic", "openai", "openai-chat"):
        play = plays_silence(lambda body, number: pings)
        yield Row("only pings", flavour, play, config={"limits": {"model_timeout": 2}})
