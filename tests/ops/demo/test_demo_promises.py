"""The demo's promises: a log that keeps them all passes, and each broken one is named in a sentence."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from turnkeeper.models.session.prompts import Fate, FateName
from turnkeeper.models.transcript.conversation import (
    Approval,
    ConversationMessage,
    ModelStep,
    ReasoningTrajectory,
    ToolCall,
    ToolResult,
    UserStep,
)
from turnkeeper.ops.demo.report import PROMISES, AcceptedPrompt, ApprovedWrite, FileState, SessionLog, broken_promises

NOW = datetime(2026, 1, 1, tzinfo=UTC)

CALL = ToolCall(
    id="2.1.0",
    name="file_write",
    args={"path": "a.txt", "content": "hello"},
    approval=Approval(args_digest="d", asked_at=NOW, expires_at=NOW + timedelta(days=1), decision="approve"),
    result=ToolResult(outcome="Wrote a.txt"),
)
FILE = FileState(content="hello", version="1")
STEERED = UserStep(kind="user", message_id="p4", content="shorter", timestamp=NOW)


def step(number: int, text: str | None, *calls: ToolCall) -> ModelStep:
    return ModelStep(kind="model", number=number, text=text, tool_calls=list(calls), timestamp=NOW)


def turn(id: str, *steps: ModelStep | UserStep, **fields: object) -> ConversationMessage:
    required = {"id": id, "timestamp": NOW, "user_message": f"text of {id}", "user_timestamp": NOW, "revision": 1}
    ended = {"agent_message": f"answer to {id}", "agent_timestamp": NOW, "status": "completed"}
    return ConversationMessage(**required | ended | {"reasoning_trajectory": ReasoningTrajectory(steps=steps)} | fields)


def prompt(id: str, **fields: object) -> AcceptedPrompt:
    return AcceptedPrompt(id=id, text=f"text of {id}", **fields)


def fate(id: str, name: FateName = "started", turn_id: str | None = None) -> Fate:
    return Fate(id=id, fate=name, at=NOW, turn_id=turn_id)


TURNS = [
    turn("p1", step(1, "answer to p1")),
    turn("p2", step(1, None, CALL), step(2, "answer to p2")),
    turn("p3", STEERED, step(1, "answer to p3")),
]

FLAWLESS = SessionLog(
    prompts=[prompt("p1"), prompt("p2"), prompt("p3"), prompt("p4"), prompt("p5"), prompt("p8")],
    fates=[
        *(fate("p1"), fate("p2"), fate("p3"), fate("p4", "steered", "p3"), fate("p5", "withdrawn")),
        fate("p8", "rejected"),
    ],
    transcript=TURNS,
    client_turns=TURNS,
    new_turn_ids=["p1", "p2", "p3"],
    partial_texts={("p1", 1): "answer", ("p2", 9): "cut off"},
    writes=[
        ApprovedWrite(path="a.txt", content="hello", call_id="2.1.0", before=FileState(), after=FILE, at_the_end=FILE)
    ],
)
"""A log with every fate there is, and a step that was never received."""


def but(**fields: object) -> SessionLog:
    return FLAWLESS.model_copy(update=fields)


def with_transcript(turns: list[ConversationMessage]) -> SessionLog:
    return but(transcript=turns, client_turns=turns)


def with_write(**fields: object) -> SessionLog:
    return but(writes=[FLAWLESS.writes[0].model_copy(update=fields)])


UNAPPROVED = CALL.model_copy(update={"approval": CALL.approval.model_copy(update={"decision": "reject"})})
OPEN = CALL.model_copy(update={"id": "2.1.1", "result": None})

BROKEN: dict[str, tuple[SessionLog, str]] = {
    "lost": (but(prompts=[*FLAWLESS.prompts, prompt("p9")]), "Prompt 'p9' was accepted and is lost."),
    "two fates": (but(fates=[*FLAWLESS.fates, fate("p5", "withdrawn")]), "Prompt 'p5' has 2 fates."),
    "waits": (but(waiting=["p8"]), "Prompt 'p8' is still queued."),
    "waits after its fate": (but(waiting=["p5"]), "Prompt 'p5' is still queued although it has a fate."),
    "started without a turn": (
        but(fates=[*FLAWLESS.fates, fate("p7")]),
        "Prompt 'p7' was started, but the transcript has no such turn.",
    ),
    "steered into nothing": (
        with_transcript([*TURNS[:2], turn("p3")]),
        "Prompt 'p4' was steered into turn 'p3', but is not in it.",
    ),
    "withdrawn and done": (
        with_transcript([*TURNS, turn("p5")]),
        "Prompt 'p5' was withdrawn, but is in the transcript.",
    ),
    "answered twice": (with_transcript([*TURNS, turn("p3", STEERED)]), "Prompt 'p3' became 2 turns."),
    "nobody asked": (with_transcript([*TURNS, turn("p9")]), "Turn 'p9' has no prompt."),
    "another text": (
        with_transcript([turn("p1", user_message="something else"), *TURNS[1:]]),
        "Turn 'p1' has another text than its prompt.",
    ),
    "out of order": (
        with_transcript([TURNS[1], TURNS[0], TURNS[2]]),
        "Prompt 'p1' was sent before 'p2', but started after it.",
    ),
    "still running": (
        with_transcript([*TURNS[:2], turn("p3", STEERED, agent_message=None, status="processing")]),
        "Turn 'p3' has not ended.",
    ),
    "no answer": (
        with_transcript([*TURNS[:2], turn("p3", STEERED, agent_message=None, error="It broke.", status="failed")]),
        "Turn 'p3' ended without an answer: It broke.",
    ),
    "an empty answer": (
        with_transcript([*TURNS[:2], turn("p3", STEERED, agent_message="")]),
        "Turn 'p3' ended without an answer: it is empty",
    ),
    "an answer with more than was asked for": (
        but(prompts=[prompt("p1", answer="answer"), *FLAWLESS.prompts[1:]]),
        "Turn 'p1' does not have exactly the expected answer.",
    ),
    "a call twice": (
        with_transcript([TURNS[0], turn("p2", step(1, None, CALL), step(2, None, CALL)), TURNS[2]]),
        "Call '2.1.0' occurs 2 times.",
    ),
    "a call left open": (
        with_transcript([TURNS[0], turn("p2", step(1, None, CALL, OPEN)), TURNS[2]]),
        "Call '2.1.1' has no result.",
    ),
    "written without approval": (
        with_transcript([TURNS[0], turn("p2", step(1, None, UNAPPROVED)), TURNS[2]]),
        "The transcript has no approval of call '2.1.0', which wrote a.txt.",
    ),
    "written too early": (with_write(before=FILE), "a.txt existed before the write was approved."),
    "not written": (
        with_write(after=FileState(), at_the_end=FileState()),
        "a.txt should contain 'hello', but contains None.",
    ),
    "written twice": (
        with_write(at_the_end=FileState(content="hello", version="2")),
        "a.txt was written again after its turn had ended.",
    ),
    "not shown": (but(client_turns=TURNS[1:]), "The client never received turn 'p1'."),
    "shown otherwise": (
        but(client_turns=[*TURNS[:2], turn("p3", agent_message="another")]),
        "Turn 'p3' differs between client and transcript: agent_message, reasoning_trajectory.",
    ),
    "shown and not there": (
        but(client_turns=[*TURNS, turn("p9")]),
        "The client received turn 'p9', which is not in the transcript.",
    ),
    "held twice": (
        but(client_turns=[*TURNS, TURNS[2]]),
        "The client has the turns in another order, or twice: p1, p2, p3, p3.",
    ),
    "new twice": (
        but(new_turn_ids=["p1", "p2", "p2", "p3"]),
        "Turn 'p2' was sent as new 2 times.",
    ),
    "shown early and wrong": (
        but(partial_texts={("p1", 1): "another"}),
        "The partial output of turn 'p1' is not the start of its answer.",
    ),
}


def test_ops_3_a_log_that_keeps_every_promise_has_no_violation():
    assert broken_promises(FLAWLESS) == []


@pytest.mark.parametrize(("log", "sentence"), BROKEN.values(), ids=BROKEN)
def test_ops_3_every_broken_promise_is_described(log: SessionLog, sentence: str):
    assert broken_promises(log) == [sentence]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_ops_3_every_promise_can_be_broken(promise: Callable):
    assert any(list(promise(log)) for log, _ in BROKEN.values())
