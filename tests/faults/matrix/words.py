"""Rows of errors in vendors' own words: too long, no quota, a wrong key, a prompt that is refused (L3, L7, L13)."""

import json
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from tests.activities.providers.test_vendor_words import NO_KEY, NO_QUOTA, REFUSED, TOO_LONG, UNSEEN_TOO_LONG, Case
from tests.faults.matrix.parts import CHAT
from tests.faults.matrix.playing import Play, Row, RowSession, is_answered
from tests.vendors.flavours.fleet import Override, prompt
from tests.vendors.flavours.rules import Body
from turnkeeper.testing.vendor_server import Reply

MAX_CHARS = 9_000
"""The length of the messages, as JSON, from which a request is too long."""

WITHOUT_WORDS: dict[str, Case] = {
    f"{status} {body!r}": (status, body) for status in (400, 413, 422) for body in ("", {"error": {}}, "Bad Request")
}

LASTING: dict[str, Case] = {
    "Jinja": (500, {"error": {"message": "Jinja Exception: Conversation roles must alternate", "code": 500}}),
    "input": (500, {"error": {"message": "Failed to parse input at pos 7", "type": "server_error"}}),
    "memory": (500, {"error": "model requires more system memory (12.1 GiB) than is available (8.2 GiB)"}),
    "loading": (500, {"error": "llama runner process has terminated: exit status 2"}),
}
"""Errors of a server that come again: the turn ends with the vendor's words, the next one is answered."""


def reply_of(case: Case) -> Reply:
    status, body = case
    if status != 200:
        return Reply.error(status, body)
    # A code without an `error` around it is that of an event of the Responses API.
    event = {"type": "error", **body} if "code" in body else body if "error" in body else {"error": body}
    return Reply.stream([f"event: error\ndata: {json.dumps(event)}\n\n".encode()])


def is_too_long(body: Body) -> bool:
    return len(json.dumps(body.get("messages") or body.get("input"))) > MAX_CHARS


def too_long(case: Case) -> Play:
    def override(body: Body, number: int) -> Reply | None:
        return reply_of(case) if is_too_long(body) else None

    async def play(run: RowSession) -> None:
        run.line.override = override
        for number in range(5):
            await run.turn(f"p{number}", text=f"{prompt(f'p{number}')} {'x ' * 1_500}")
        pairs = zip(run.turns, run.turns[1:], strict=False)
        assert all(is_answered(one) or is_answered(other) for one, other in pairs), [turn.error for turn in run.turns]
        assert is_answered(run.turns[-1]), run.turns[-1].error
        requests = len(run.line.exchanges)
        assert is_answered(await run.turn("last")), run.turns[-1].error
        assert len(run.line.exchanges) <= requests + 2

    return play


def passing_by_itself(override: Override, *error_types: str, words: str = "") -> Play:
    """A turn that ends with an error, and the next one after somebody has set it right."""

    async def play(run: RowSession) -> None:
        await run.turn("p1", ["look"])
        run.line.override = override
        turn = await run.turn("p2", ["look"])
        assert turn.error_type in error_types, f"{turn.error_type}: {turn.error}"
        assert words in (turn.error or ""), turn.error
        run.line.override = None
        assert is_answered(await run.turn("p3", ["look"])), run.turns[-1].error
        assert is_answered(await run.turn("p4")), run.turns[-1].error

    return play


def always(case: Case) -> Callable[[Body, int], Reply]:
    return lambda body, number: reply_of(case)


def rows() -> Iterator[Row]:
    flavours = cycle(CHAT)
    for name, case in TOO_LONG.items():
        yield Row(f"too long: {name}", next(flavours), too_long(case))
    for text in UNSEEN_TOO_LONG:
        body: dict[str, Any] = {"error": {"message": text, "type": "invalid_request_error", "code": None}}
        for flavour in (next(flavours), "anthropic", "openai"):
            yield Row(f"too long: {text[:50]}", flavour, too_long((400, body)))
    for name, case in WITHOUT_WORDS.items():
        for flavour in (next(flavours), "anthropic-compatible", "openai"):
            yield Row(f"too long without words: {name}", flavour, too_long(case))
    for table, error_type in ((NO_QUOTA, "quota"), (NO_KEY, "auth"), (REFUSED, "refusal")):
        for name, case in table.items():
            flavour = "openai" if case[0] == 200 and "code" in case[1] else next(flavours)
            yield Row(f"{error_type}: {name}", flavour, passing_by_itself(always(case), error_type))
    for name, case in LASTING.items():
        for flavour in ("llama.cpp", "ollama", "vllm"):
            play = passing_by_itself(always(case), "provider_error", "bad_request")
            yield Row(f"lasting: {name}", flavour, play)
