"""Small, valid things to test with."""

from datetime import UTC, datetime, timedelta

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, RespondPart

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def session(**config: object) -> Session:
    return Session("s1", SessionInput.model_validate(config), now=NOW)


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[RespondPart(kind="respond", text=text)], model="test")


def asks(*names: str) -> ModelResponse:
    calls: list[Part] = [CallPart(kind="call", id=f"c{index}", name=name) for index, name in enumerate(names)]
    return ModelResponse(parts=calls, stop="tool_calls", model="test")


def send(target: Session, text: str, *, id: str | None = None, mode: str = "enqueue", seconds: float = 0) -> None:
    new_id = id or f"p{target.revision}"
    target.receive({"text": text, "id": new_id, "mode": mode}, extra_arguments=0, new_id=new_id, now=at(seconds))


def answer_turn(target: Session, text: str = "ok", *, seconds: float = 1) -> None:
    target.begin_turn(now=at(seconds))
    target.turn_slot.add_response(says(text), [], now=at(seconds + 1))
    target.turn_slot.append_step_to_view(state=None)
    complete_turn(target, text, now=at(seconds + 1))


def complete_turn(target: Session, answer: str, *, now: datetime) -> None:
    target.end_turn(target.turn_slot.running().completed(answer, now=now))


def fail_turn(target: Session, error_type: ErrorType, error: str, *, now: datetime) -> None:
    target.end_turn(target.turn_slot.running().failed(error_type, error, now=now))


def evict(target: Session) -> None:
    """Evict as before a model call."""
    config = target.config
    target.context.evict(config.history, model=config.model, head=target.head, max_bytes=config.limits.view_bytes)


def roomy(target: Session) -> Session:
    """Raise the limits of a session beyond what can be carried, so that paging is visible."""
    limits = target.config.limits.model_copy(update={"max_state_bytes": 100_000_000})
    target.config = target.config.model_copy(update={"limits": limits})
    return target
