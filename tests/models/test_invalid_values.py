"""Errors about invalid values are in our own words, never pydantic's: API-2, OPS-4."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import AnyHttpUrl, AwareDatetime, BaseModel, Field, ValidationError

from turnkeeper.api.bodies import SendPrompt, StartSession
from turnkeeper.models.limits import LimitsChange
from turnkeeper.models.session.prompts import sentence_for
from turnkeeper.models.wire import Strict, reason_of


class User(BaseModel):
    role: Literal["user"]


class Assistant(BaseModel):
    role: Literal["assistant"]


class Everything(Strict):
    count: int = Field(1, ge=1, le=10_000)
    share: float = Field(0.5, gt=0, lt=1)
    flag: bool = False
    text: str = Field("ok", min_length=2, max_length=1_000)
    at: AwareDatetime | None = None
    url: AnyHttpUrl | None = None
    site: str = Field("https://x", pattern=r"^https?://[^\s/]+[^\s]*$")
    words: list[str] = Field([], max_length=1)
    by_name: dict[str, str] = {}
    choice: Literal["a", "b", "c"] = "a"
    messages: list[Annotated[User | Assistant, Field(discriminator="role")]] = []


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("count", "x", "must be a whole number"),
        ("count", 1.5, "must be a whole number"),
        ("count", 0, "must be at least 1"),
        ("count", 10_001, "must be at most 10,000"),
        ("share", "x", "must be a number"),
        ("share", 0, "must be over 0"),
        ("share", 1, "must be under 1"),
        ("flag", "perhaps", "must be true or false"),
        ("text", 5, "must be a string"),
        ("text", "x", "must have at least 2 characters"),
        ("text", "x" * 1_001, "may have at most 1,000 characters"),
        ("at", "2026-11-22T10:00:00", "must be a date and time with its time zone, as 2026-11-22T10:00:00Z"),
        ("at", "soon", "must be a date and time, as 2026-11-22T10:00:00Z"),
        ("url", "soon", "must be an address, as https://example.org"),
        ("site", "soon", "must be an address, as https://example.org"),
        ("words", "x", "must be a list"),
        ("words", ["a", "b"], "may have at most 1 item"),
        ("by_name", [], "must be an object"),
        ("choice", "z", 'must be "a", "b" or "c"'),
    ],
)
def test_api_2_the_rejection_of_a_value_is_a_sentence(field: str, value: Any, reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Everything.model_validate({field: value})
    assert [(error["loc"], reason_of(error)) for error in refused.value.errors()] == [((field,), reason)]


def test_api_2_the_rejection_of_an_unknown_role_lists_the_roles() -> None:
    with pytest.raises(ValidationError) as refused:
        Everything.model_validate({"messages": [{"role": "system"}, {}]})
    assert [reason_of(error) for error in refused.value.errors()] == [
        'role must be "user" or "assistant"',
        "role is required",
    ]


def test_api_2_the_error_for_an_unknown_field_lists_the_valid_ones_and_other_errors() -> None:
    with pytest.raises(ValidationError) as refused:
        StartSession.model_validate({"id": "a b", "limits": {"max_steps": 0, "steps": 1}, "mood": "good"})
    reasons = {error["loc"]: reason_of(error) for error in refused.value.errors()}
    assert reasons == {
        ("id",): "must be 1 to 128 letters, digits or . _ ~ -",
        ("limits", "max_steps"): "must be at least 1",
        ("limits", "steps"): f"unknown field (allowed: {', '.join(LimitsChange.model_fields)})",
        ("mood",): f"unknown field (allowed: {', '.join(StartSession.model_fields)})",
    }


def test_api_2_the_error_for_a_missing_field_names_it() -> None:
    with pytest.raises(ValidationError) as refused:
        SendPrompt.model_validate({"text": "Hi"})
    assert (
        sentence_for(refused.value)
        == "message: is required; text: unknown field (allowed: message, attachments, id, mode)."
    )
