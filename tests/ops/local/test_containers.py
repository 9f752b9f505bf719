"""The container files say what the code says (OPS-5)."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml
from temporalio.api.enums.v1 import IndexedValueType

from turnkeeper.models.limits import DEFAULT_MODEL
from turnkeeper.models.settings.settings import ENV_PREFIX, VENDORS_MODELS, Settings, setting_names
from turnkeeper.ops.local.dev_server import find_binary, server_version
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.connection import RETENTION_DAYS

ROOT = Path(__file__).parents[3]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def extras() -> list[str]:
    """Return what the image installs beyond what every installation has."""
    return re.search(r"'\.\[(.*?)\]'", DOCKERFILE)[1].split(",")


def service(name: str) -> str:
    """Return a service as it is written in the file."""
    return re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)[1]


def test_ops_5_the_namespace_job_uses_the_codes_search_attributes_and_retention():
    attributes = dict(re.findall(r"--name (\w+) --type (\w+)", COMPOSE))
    expected = {
        key.name: IndexedValueType.Name(key.indexed_value_type).removeprefix("INDEXED_VALUE_TYPE_").capitalize()
        for key in search_attributes.ALL
    }
    assert attributes == expected
    assert f"--retention {RETENTION_DAYS}d" in COMPOSE


def test_ops_5_every_variable_that_the_containers_set_is_a_setting():
    variables = {ENV_PREFIX + name.replace(".", "__").upper() for name in setting_names()}
    used = set(re.findall(rf"{ENV_PREFIX}\w+", COMPOSE + DOCKERFILE))
    assert used
    assert used <= variables


async def test_ops_5_the_containers_server_has_the_version_of_the_embedded_one(folder):
    version = await server_version(find_binary(folder))
    assert set(re.findall(r"temporalio/(?:server|admin-tools):(\S+)", COMPOSE)) == {version}


def test_ops_5_every_port_is_published_on_loopback_only():
    published = re.findall(r'ports: \["(.*?)"\]', COMPOSE)
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_ops_5_the_image_and_its_build_context_have_every_package():
    links = {path.readlink().name for path in (ROOT / "turnkeeper").iterdir() if path.is_symlink()}
    packages = {"turnkeeper", *(name for name in links if not name.endswith(".py"))}
    assert set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE)) == packages
    assert set(re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)) == packages | {"LICENSE"}


def test_ops_5_worker_and_gateway_open_the_same_archive_once_it_exists():
    assert COMPOSE.count("<<: *turnkeeper") == COMPOSE.count("<<: [*address, *archive, *redis, *model]") == 2
    assert re.search(r"archive-database:\n +condition: service_completed_successfully", COMPOSE)
    url = re.search(r"TURNKEEPER_ARCHIVE_URL: (.*)", COMPOSE)[1]
    assert Settings(archive_url=url).archive_url == url
    assert "postgres" in extras()


def test_ops_5_the_image_has_everything_the_providers_need():
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras() == sorted(optional.keys() - {"all", "cli", "dev", "local", "stack"})  # those two need cli and stack


def test_ops_5_only_the_worker_gets_the_keys_of_models():
    secrets = (*VENDORS_MODELS, "TURNKEEPER_OPENAI_CHAT__API_KEY")
    worker, rest = service("worker"), COMPOSE.replace(service("worker"), "")
    for name in secrets:
        assert re.search(rf"^      {name}:$", worker, re.MULTILINE), "passed on as it is, or not set at all"
        assert not re.search(rf"^ *{name}:", rest, re.MULTILINE)


def test_ops_5_without_a_configured_model_the_containers_use_the_offline_one():
    model = re.search(r'TURNKEEPER_MODEL: "\$\{TURNKEEPER_MODEL:-(.*)\}"', COMPOSE)[1]
    assert Settings(model=model).first_model == DEFAULT_MODEL


SERVICES = yaml.safe_load(COMPOSE)["services"]

SERVICE_KEYS = {
    *("build", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "init", "networks"),
    *("env_file", "ports", "restart", "stop_grace_period", "user", "volumes", "working_dir"),
}
"""Keys of the Compose Specification that the file uses: look a new one up there before adding it here."""


def test_ops_5_the_compose_file_has_valid_keys_and_references():
    """The checks of `docker compose config`, without Docker."""
    file = yaml.safe_load(COMPOSE)
    assert {name for name in file if not name.startswith("x-")} == {"services", "networks", "volumes"}
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service, name
        assert set(service["networks"]) <= set(file["networks"]), name
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert volumes <= {*file["volumes"], "./config"}, name
        assert all(value is None or isinstance(value, str) for value in service.get("environment", {}).values()), name


def test_ops_5_every_service_dependency_can_be_met():
    for name, service in SERVICES.items():
        for other, needed in service.get("depends_on", {}).items():
            condition = needed["condition"]
            if condition == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"][0] == "CMD", name
            else:
                assert condition == "service_completed_successfully", name
                assert SERVICES[other]["restart"].startswith("on-failure"), name


JOBS = {name for name, service in SERVICES.items() if service["restart"].startswith("on-failure")}


def test_ops_5_every_long_running_service_has_a_health_check():
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == JOBS


def test_api_4_the_containers_gateway_needs_a_key_and_no_password_has_a_default():
    gateway = SERVICES["gateway"]["environment"]
    assert gateway["TURNKEEPER_AUTH__KEYS"] == "true"
    assert Settings(api_host=gateway["TURNKEEPER_API_HOST"], auth={"keys": True}).auth.is_on
    passwords = re.findall(r"\$\{([A-Z_]*PASSWORD)(.*?)\}", COMPOSE)
    assert {name for name, _ in passwords} == {"POSTGRES_PASSWORD", "ARCHIVE_PASSWORD", "REDIS_PASSWORD"}
    assert all(rest.startswith(":?") for _, rest in passwords), "without one, compose says which is missing"


def test_ops_5_settings_and_tool_servers_are_read_from_the_folder_of_the_file():
    for name in ("worker", "gateway"):
        assert SERVICES[name]["working_dir"] == "/etc/turnkeeper"
        assert "./config:/etc/turnkeeper:ro" in SERVICES[name]["volumes"]


def test_ops_5_every_dollar_sign_is_a_variable_with_a_default_or_is_escaped():
    def texts(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(part)

    for text in texts(yaml.safe_load(COMPOSE)):
        assert "$" not in re.sub(r"\$\$|\$\{[A-Z_]+:[-?][^{}$]*\}", "", text)
