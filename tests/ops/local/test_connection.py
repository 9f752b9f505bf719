"""How Temporal is found and prepared (OPS-2, OPS-8)."""

import asyncio

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode

from tests.waiting import until
from turnkeeper.models.command_line import command_line
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.processes import free_port
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.connection import connect, missing_search_attributes, prepare, reason_of
from turnkeeper.stores.temporal.endpoint import EmbeddedServer, TemporalAccessError, find_endpoint


@pytest.fixture
async def client(server: DevServer) -> Client:
    return await connect(Settings(state_dir=server.state_dir))


def test_ops_2_without_an_address_the_embedded_server_is_expected_at_its_port(folder):
    endpoint = find_endpoint(Settings(state_dir=folder, temporal_port=7777))
    assert (endpoint.address, endpoint.namespace, endpoint.embedded) == ("127.0.0.1:7777", "default", True)


def test_ops_2_the_embedded_servers_recorded_address_overrides_the_port(folder):
    EmbeddedServer.file(folder).write_text(EmbeddedServer(address="127.0.0.1:9", ui_url=None, pid=1).model_dump_json())
    assert find_endpoint(Settings(state_dir=folder)).address == "127.0.0.1:9"


def test_ops_2_an_address_in_temporals_own_configuration_is_used_unchanged(folder, monkeypatch):
    (folder / "temporal.toml").write_text(
        '[profile.default]\naddress = "cloud.example:7233"\nnamespace = "ours"\napi_key = "secret"'
    )
    endpoint = find_endpoint(Settings(state_dir=folder))
    assert (endpoint.address, endpoint.namespace, endpoint.embedded) == ("cloud.example:7233", "ours", False)
    assert endpoint.access["api_key"] == "secret"
    assert endpoint.access["tls"]
    monkeypatch.setenv("TEMPORAL_ADDRESS", "other.example:7233")
    assert find_endpoint(Settings(state_dir=folder)).address == "other.example:7233"


@pytest.mark.parametrize("variable", ["HOME", "XDG_CONFIG_HOME"])
def test_ops_2_a_file_at_temporals_default_location_is_used(folder, monkeypatch, variable):
    monkeypatch.delenv("TEMPORAL_CONFIG_FILE")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv(variable, str(folder / "own"))
    assert find_endpoint(Settings(state_dir=folder)).embedded
    for parent in ("own", "own/.config", "own/Library/Application Support"):
        (folder / parent / "temporalio").mkdir(parents=True)
        (folder / parent / "temporalio" / "temporal.toml").write_text(
            '[profile.default]\naddress = "cloud.example:7233"'
        )
    assert ClientConfigProfile.load().address == "cloud.example:7233"
    assert find_endpoint(Settings(state_dir=folder)).address == "cloud.example:7233"


def test_ops_2_a_key_without_a_server_address_is_an_error(folder, monkeypatch):
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    with pytest.raises(TemporalAccessError) as refused:
        find_endpoint(Settings(state_dir=folder))
    assert str(refused.value) == (
        "TEMPORAL_* or temporal.toml gives api_key, tls but no address: set TEMPORAL_ADDRESS too."
    )


def test_ops_2_an_unreadable_configuration_is_an_error(folder, monkeypatch):
    monkeypatch.setenv("TEMPORAL_PROFILE", "nobody's")
    with pytest.raises(TemporalAccessError, match="nobody's"):
        find_endpoint(Settings(state_dir=folder))


@pytest.mark.parametrize("patience", [0.0, 0.5])
async def test_ops_2_an_unreachable_server_is_reported_with_the_fix(folder, patience):
    port = free_port()
    with pytest.raises(TemporalAccessError) as refused:
        await connect(Settings(state_dir=folder, temporal_port=port), patience=patience)
    assert str(refused.value) == (
        f"Temporal cannot be reached at 127.0.0.1:{port} (Connection refused). "
        f"Start it with `{command_line('up')}`, or set TEMPORAL_ADDRESS."
    )


SDK_TEXT = "Failed client connect: Server connection error: tonic::transport::Error(Transport, ConnectError({}))"

CERTIFICATE = "Custom {{ kind: InvalidData, error: InvalidCertificate({}) }}"


@pytest.mark.parametrize(
    ("error", "text", "fix"),
    [
        (SDK_TEXT.format('ConnectError("tcp connect error", Os { message: "Connection refused" })'), "refused", ""),
        (SDK_TEXT.format('ConnectError("dns error", Custom { error: "failed to lookup" })'), "host name", ""),
        (SDK_TEXT.format(CERTIFICATE.format("UnknownIssuer")), "trusts", "TEMPORAL_TLS_SERVER_CA_CERT_PATH"),
        (SDK_TEXT.format(CERTIFICATE.format("Other(OtherError(CaUsedAsEndEntity))")), "trusts", "CA_CERT_PATH"),
        (SDK_TEXT.format(CERTIFICATE.format("NotValidForNameContext")), "another name", "TEMPORAL_TLS_SERVER_NAME"),
        (SDK_TEXT.format(CERTIFICATE.format("ExpiredContext")), "not valid now", "clocks"),
        (SDK_TEXT.format("AlertReceived(CertificateRequired)"), "our side", "TEMPORAL_TLS_CLIENT_CERT_PATH"),
        (SDK_TEXT.format("InvalidMessage(InvalidContentType)"), "does not use TLS", "TEMPORAL_TLS"),
        (
            "Status { code: Cancelled, source: Some(hyper::Error(Canceled, connection closed))",
            "uses TLS",
            "TEMPORAL_TLS",
        ),
        ('Status { code: Unauthenticated, message: "no" }', "rejected the API key", "TEMPORAL_API_KEY"),
        ('Status { code: PermissionDenied, message: "no" }', "does not permit", "TEMPORAL_NAMESPACE"),
        ("", "no answer", ""),
    ],
)
def test_ops_2_an_sdk_error_is_explained_with_the_fix(error: str, text: str, fix: str):
    reason = reason_of(RuntimeError(error))
    assert text in reason.text
    assert fix in reason.fix if fix else not reason.fix


async def test_ops_2_a_server_without_tls_and_an_unknown_namespace_are_reported(folder, server, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nope")
    with pytest.raises(TemporalAccessError, match=r"has no namespace 'nope'\. Set TEMPORAL_NAMESPACE, or create"):
        await prepare(await connect(Settings(state_dir=folder)))
    monkeypatch.setenv("TEMPORAL_TLS", "true")
    with pytest.raises(TemporalAccessError, match=r"\(it does not use TLS, and we do\)\. Check TEMPORAL_TLS"):
        await connect(Settings(state_dir=folder))


async def test_ops_2_a_lazy_client_needs_no_server_until_its_first_call(folder):
    settings = Settings(state_dir=folder, temporal_port=free_port())
    client = await connect(settings, lazy=True)
    async with DevServer(folder, in_memory=True, port=settings.temporal_port, ui_port=None):
        assert await client.service_client.check_health()


async def test_ops_2_a_patient_client_connects_to_a_server_that_starts_later(folder):
    settings = Settings(state_dir=folder, temporal_port=free_port())
    waiting = asyncio.create_task(connect(settings, patience=30))
    async with DevServer(folder, in_memory=True, port=settings.temporal_port, ui_port=None):
        assert await (await waiting).service_client.check_health()


@pytest.mark.parametrize(("named", "compression"), [("none", GrpcCompression.NONE), ("gzip", GrpcCompression.GZIP)])
async def test_ops_8_compression_follows_the_settings(folder, named, compression):
    client = await connect(Settings(state_dir=folder, grpc_compression=named), lazy=True)
    assert client.service_client.config.grpc_compression == compression


async def test_ses_17_search_attributes_are_registered_once_by_concurrent_callers(client):
    await client.workflow_service.register_namespace(_namespace("fresh"))
    fresh = Client(client.service_client, namespace="fresh")
    await until(lambda: _is_known(fresh))
    assert list(await missing_search_attributes(fresh)) == list(search_attributes.ALL)
    await asyncio.gather(*(prepare(fresh) for _ in range(8)))
    assert await missing_search_attributes(fresh) == []
    await prepare(fresh)


async def test_ses_17_a_search_attribute_of_another_type_is_reported(client):
    named = search_attributes.TURNS.name
    await client.operator_service.remove_search_attributes(
        RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=[named])
    )
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace, search_attributes={named: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}
        )
    )
    with pytest.raises(TemporalAccessError, match="AgentTurns of another type than Int"):
        await prepare(client)


async def test_ses_17_a_hosted_server_that_rejects_registration_is_explained_in_a_sentence(client, monkeypatch):
    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(client.operator_service, "list_search_attributes", refuse)
    with pytest.raises(TemporalAccessError) as refused:
        await prepare(client)
    assert str(refused.value) == (
        "The server does not let us register search attributes in 'default': have its administrator add "
        "AgentSessionStatus (Keyword), AgentUser (Keyword), AgentModel (Keyword), AgentTurns (Int), "
        "AgentTaskParent (Keyword), AgentTenant (Keyword)."
    )


def _namespace(name: str) -> RegisterNamespaceRequest:
    request = RegisterNamespaceRequest(namespace=name)
    request.workflow_execution_retention_period.FromSeconds(86_400)
    return request


async def _is_known(client: Client) -> bool:
    try:
        await missing_search_attributes(client)
    except TemporalAccessError:
        return False
    return True
