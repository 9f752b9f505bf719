"""Settings: where they come from, the sentence that refuses a wrong one, and the first model (OPS-4, AGT-4)."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from turnkeeper.models.settings.settings import Settings, SettingsError, load_settings


@pytest.fixture
def write_file(folder: Path):
    return (folder / "turnkeeper.toml").write_text


def test_ops_4_without_file_and_variables_the_defaults_apply():
    settings = load_settings()
    assert (settings.state_dir, settings.api_port, settings.limits.max_steps) == (Path(".turnkeeper"), 8080, 50)


def test_ops_4_code_overrides_environment_overrides_file_overrides_default(write_file, monkeypatch):
    write_file("api_port = 1\ntemporal_port = 1\ntemporal_ui_port = 1")
    monkeypatch.setenv("TURNKEEPER_API_PORT", "2")
    monkeypatch.setenv("TURNKEEPER_TEMPORAL_PORT", "2")
    settings = Settings(api_port=3)
    assert (settings.api_port, settings.temporal_port, settings.temporal_ui_port) == (3, 2, 1)
    assert settings.task_queue == "turnkeeper"


def test_ops_4_nested_settings_are_merged_key_by_key_from_file_and_environment(write_file, monkeypatch):
    write_file("[limits]\nmax_steps = 7\nmax_tool_calls = 7")
    monkeypatch.setenv("TURNKEEPER_LIMITS__MAX_STEPS", "8")
    limits = load_settings().limits
    assert (limits.max_steps, limits.max_tool_calls, limits.max_parallel_tools) == (8, 7, 8)


def test_ops_4_the_file_may_be_set_by_a_variable(folder, monkeypatch):
    (folder / "other.toml").write_text('task_queue = "other"')
    monkeypatch.setenv("TURNKEEPER_CONFIG", "other.toml")
    assert load_settings().task_queue == "other"


def test_ops_4_an_empty_variable_counts_as_not_set(write_file, monkeypatch):
    write_file("api_port = 81")
    monkeypatch.setenv("TURNKEEPER_API_PORT", "")
    assert load_settings().api_port == 81


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_prt = 1", "'api_prt' (in turnkeeper.toml) is not a setting. Did you mean api_port?"),
        ("[limits]\nsteps = 1", "'limits.steps' (in turnkeeper.toml) is not a setting. Did you mean limits.max_steps?"),
        ("colour = 1", "'colour' (in turnkeeper.toml) is not a setting. docs/settings.md lists all settings."),
        (
            "[limits]\nmax_steps = 0",
            "limits.max_steps=0 (in turnkeeper.toml) is not allowed: must be at least 1.",
        ),
        (
            'grpc_compression = "zip"',
            'grpc_compression=\'zip\' (in turnkeeper.toml) is not allowed: must be "none" or "gzip".',
        ),
        ("api_port = ", "turnkeeper.toml cannot be read as TOML: Invalid value (at end of document)."),
        (
            "max_conversation_messages = 5\n[conversation]\nmax_messages = 6",
            "max_conversation_messages is short for conversation.max_messages: give only one of them.",
        ),
    ],
)
def test_ops_4_a_wrong_key_or_value_in_the_file_is_rejected_with_the_valid_ones(write_file, text, message):
    write_file(text)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "TURNKEEPER_API_PRT",
            "1",
            "The environment variable TURNKEEPER_API_PRT is not a setting. Did you mean TURNKEEPER_API_PORT?",
        ),
        (
            "TURNKEEPER_LIMITS",
            "{}",
            "The environment variable TURNKEEPER_LIMITS is not a setting. docs/settings.md lists all settings.",
        ),
        (
            "TURNKEEPER_API_PORT",
            "high",
            "api_port='high' (environment variable TURNKEEPER_API_PORT) is not allowed: must be a whole number.",
        ),
        ("TURNKEEPER_CONFIG", "gone.toml", "TURNKEEPER_CONFIG names 'gone.toml', which does not exist."),
    ],
)
def test_ops_4_a_wrong_variable_or_value_is_rejected_with_the_valid_ones(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == message


def test_ops_4_an_invalid_model_name_stops_the_start(monkeypatch):
    monkeypatch.setenv("TURNKEEPER_MODEL", "gpt")
    with pytest.raises(
        SettingsError, match=r"^model='gpt' .* 'gpt' names none of the providers .*; write it as openai:gpt-5.5"
    ):
        load_settings()


def test_ops_4_the_workflow_cache_is_at_least_as_large_as_the_number_of_tasks(monkeypatch):
    monkeypatch.setenv("TURNKEEPER_MAX_CACHED_WORKFLOWS", "9")
    with pytest.raises(SettingsError, match=r"must be at least max_concurrent_workflow_tasks .* = 10"):
        load_settings()
    assert Settings(max_concurrent_replays=1).max_cached_workflows == 9


def test_ctx_1_the_window_is_set_in_short_or_in_full(write_file):
    write_file("max_conversation_messages = 30")
    assert load_settings().history.max_messages == 30
    write_file("[conversation]\nmax_messages = 30\npreserve_last_n = 5")
    assert load_settings().history.preserve_last_n == 5


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_ops_4_loopback_addresses_need_no_access_control(host):
    assert Settings(api_host=host).api_host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_ops_4_listening_for_other_machines_is_rejected_with_the_reason(host, monkeypatch):
    monkeypatch.setenv("TURNKEEPER_API_HOST", host)
    with pytest.raises(SettingsError, match=r"no key is needed; keep .*, or set auth.keys=true"):
        load_settings()
    monkeypatch.setenv("TURNKEEPER_AUTH__KEYS", "true")
    assert load_settings().api_host == host
    monkeypatch.delenv("TURNKEEPER_AUTH__KEYS")
    monkeypatch.setenv("TURNKEEPER_AUTH__OIDC__ISSUER", "https://login.example")
    monkeypatch.setenv("TURNKEEPER_AUTH__OIDC__AUDIENCE", "turnkeeper")
    assert load_settings().api_host == host


@pytest.mark.parametrize(
    ("oidc", "reason"),
    [
        ('issuer = "https://login.example"', "set both issuer and audience"),
        ('audience = "turnkeeper"', "set both issuer and audience"),
        ('issuer = "http://login.example"\naudience = "a"', "write https://HOST"),
        ('issuer = "login.example"\naudience = "a"', "write https://HOST"),
    ],
)
def test_api_4_an_issuer_needs_an_audience_and_https(write_file, oidc, reason):
    write_file(f"[auth.oidc]\n{oidc}")
    with pytest.raises(SettingsError, match=reason):
        load_settings()


def test_api_4_the_clients_key_is_not_a_setting_and_does_not_stop_the_start(monkeypatch):
    monkeypatch.setenv("TURNKEEPER_API_KEY", "tk_1_2")
    assert load_settings()


def test_ops_4_settings_never_change_in_a_running_process():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().api_port = 1


def test_agt_4_without_a_key_new_sessions_use_the_offline_model():
    assert load_settings().first_model == "offline:"


def test_agt_4_new_sessions_use_the_first_vendor_that_has_a_key(monkeypatch):
    settings = load_settings()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    assert settings.first_model == "openai:gpt-5.5"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    assert settings.first_model == "anthropic:claude-sonnet-5-5"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    assert settings.first_model == "openai:gpt-5.5"


def test_agt_4_a_configured_model_is_used_whatever_keys_are_set(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    monkeypatch.setenv("TURNKEEPER_MODEL", "openai-chat:llama")
    assert load_settings().first_model == "openai-chat:llama"


def test_api_4_allowed_hosts_are_a_list_in_the_file_and_comma_separated_in_variables(write_file, monkeypatch):
    write_file('allowed_hosts = ["Agents.example.", "[::1]"]')
    assert load_settings().allowed_hosts == ("agents.example", "::1")
    monkeypatch.setenv("TURNKEEPER_ALLOWED_HOSTS", "gateway, 10.0.0.7")
    assert load_settings().allowed_hosts == ("gateway", "10.0.0.7")


@pytest.mark.parametrize("hosts", ["http://agents.example", "agents.example:8080", "*", "a,,b", "a b"])
def test_api_4_allowed_hosts_must_be_host_names(monkeypatch, hosts):
    monkeypatch.setenv("TURNKEEPER_ALLOWED_HOSTS", hosts)
    with pytest.raises(SettingsError, match=r"allowed_hosts.*list host names or IP addresses, without scheme, port or"):
        load_settings()


def test_api_4_a_public_url_without_a_host_is_rejected(monkeypatch):
    monkeypatch.setenv("TURNKEEPER_PUBLIC_URL", "https://agents example")
    with pytest.raises(SettingsError, match="public_url"):
        load_settings()
    monkeypatch.setenv("TURNKEEPER_PUBLIC_URL", "https://me@agents.example")
    with pytest.raises(SettingsError, match=r"public_url.*write https://HOST"):
        load_settings()
