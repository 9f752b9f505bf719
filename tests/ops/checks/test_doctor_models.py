"""The doctor's findings on models and their costs, without asking a vendor (OPS-3, AGT-4, AGT-10)."""

import sys

import pytest

from turnkeeper.models.settings.settings import load_settings
from turnkeeper.ops.doctor import Finding, examine
from turnkeeper.ops.local.worker_process import WorkerReport

CHAT = "openai-chat:llama"


async def finding(subject: str) -> Finding:
    """Return the doctor's finding on this subject, without running the checks after it."""
    findings = examine()
    async for result in findings:
        if result.subject == subject:
            await findings.aclose()
            return result
    raise AssertionError(f"the doctor says nothing of the {subject}")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "offline: for new sessions (neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set)"),
        ({"OPENAI_API_KEY": "sk-1"}, "openai:gpt-5.5 for new sessions (OPENAI_API_KEY is set)"),
        (
            {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-2"},
            "anthropic:claude-sonnet-5-5 for new sessions (ANTHROPIC_API_KEY is set)",
        ),
        (
            {"ANTHROPIC_API_KEY": "sk-2", "TURNKEEPER_MODEL": "offline:script"},
            "offline:script for new sessions (the setting model)",
        ),
        (
            {"ANTHROPIC_AUTH_TOKEN": "t", "TURNKEEPER_MODEL": "anthropic:x"},
            "anthropic:x for new sessions (the setting model)",
        ),
        (
            {"TURNKEEPER_MODEL": CHAT, "TURNKEEPER_OPENAI_CHAT__BASE_URL": "http://127.0.0.1:1/v1"},
            f"{CHAT} for new sessions (the setting model)",
        ),
    ],
)
async def test_ops_3_the_doctor_reports_the_model_of_new_sessions_and_the_reason(monkeypatch, env, message):
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    assert await finding("model") == Finding("model", "good", message)


@pytest.mark.parametrize(
    ("model", "lacking", "fix"),
    [
        (
            "anthropic:x",
            "ANTHROPIC_API_KEY is not set",
            "run `export ANTHROPIC_API_KEY=...` before you start the worker, or set another model",
        ),
        (
            "openai:x",
            "OPENAI_API_KEY is not set",
            "run `export OPENAI_API_KEY=...` before you start the worker, or set another model",
        ),
        (CHAT, "openai_chat.base_url is not set", "set it, for Ollama to http://127.0.0.1:11434/v1"),
    ],
)
async def test_ops_3_a_missing_key_or_address_of_the_model_is_reported_with_the_fix(monkeypatch, model, lacking, fix):
    monkeypatch.setenv("TURNKEEPER_MODEL", model)
    message = f"{model} for new sessions (the setting model), but {lacking}"
    assert await finding("model") == Finding("model", "broken", message, fix)


@pytest.mark.parametrize(
    ("model", "sdk"), [("anthropic:claude-sonnet-5-5", "anthropic"), ("openai:x", "openai"), (CHAT, "openai")]
)
async def test_ops_3_a_missing_sdk_is_reported_with_its_extra(monkeypatch, model, sdk):
    monkeypatch.setenv("TURNKEEPER_MODEL", model)
    monkeypatch.setitem(sys.modules, sdk, None)
    message = f"{model} for new sessions (the setting model), but the package {sdk} is not installed"
    assert await finding("model") == Finding("model", "broken", message, f"run `pip install 'turnkeeper[{sdk}]'`")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("offline:", "none: the offline model is free"),
        ("anthropic:x", "known, if genai-prices lists the model"),
        (CHAT, f"unknown for {CHAT}"),
    ],
)
async def test_ops_3_the_doctor_reports_whether_costs_are_known(monkeypatch, model, message):
    monkeypatch.setenv("TURNKEEPER_MODEL", model)
    assert await finding("costs") == Finding("costs", "good", message)


@pytest.mark.parametrize(
    ("model", "why", "fix"),
    [
        ("openai:x", "unknown without the package genai-prices", "run `pip install 'turnkeeper[prices]'`"),
        (CHAT, f"unknown for {CHAT}", "set limits.max_tokens_per_turn instead"),
    ],
)
async def test_ops_3_unknown_costs_are_an_error_if_costs_are_limited(monkeypatch, model, why, fix):
    monkeypatch.setenv("TURNKEEPER_MODEL", model)
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert await finding("costs") == Finding("costs", "good", why)
    monkeypatch.setenv("TURNKEEPER_LIMITS__MAX_COST_PER_TURN", "0.5")
    message = f"{why}, so limits.max_cost_per_turn (0.5) cannot be enforced"
    assert await finding("costs") == Finding("costs", "broken", message, fix)


async def test_agt_9_the_doctor_lists_the_parts_left_out_of_a_models_requests(folder):
    texts = ["tool look (refused)", "max_tokens over 8,192 (refused)"]
    report = WorkerReport(identity="w", reported_at=0.0, refused_parts={CHAT: texts})
    report.write(load_settings().state_dir)
    assert await finding(CHAT) == Finding(CHAT, "good", f"left out of its requests: {'; '.join(texts)}")
