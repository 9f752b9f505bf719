"""Connects to Temporal, prepares its namespace, and reads histories (OPS-2, OPS-8, SES-17)."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import GrpcCompression, KeepAliveConfig, RPCError, RPCStatusCode

from turnkeeper.models.command_line import command_line
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.endpoint import Endpoint, TemporalAccessError, find_endpoint
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

_log = logging.getLogger(__name__)

RETENTION_DAYS = 30

CONNECT_SECONDS = 5.0
"""Timeout of one attempt: the SDK itself waits forever if the network drops packets."""

POLL_SECONDS = 70.0
"""A worker polls at least once a minute; Temporal lists it for 5 minutes after its last poll."""

RETRY_SECONDS = 0.05
WAIT_NOTICE_SECONDS = 1.0
"""If connecting takes longer, the log says so."""
CANCEL_SECONDS = 0.5
HEALTH_SECONDS = 2.0
"""Interval of health checks, until the server answers a lazy client."""
CALL_TIMEOUT = timedelta(seconds=10)

KEEP_ALIVE = KeepAliveConfig(interval_millis=15_000, timeout_millis=5_000)
"""A dead connection is noticed within 20 s. Temporal disconnects clients that ping more often than every 10 s."""

COMPRESSION = {"none": GrpcCompression.NONE, "gzip": GrpcCompression.GZIP}


async def connect(settings: Settings, *, lazy: bool = False, patience: float = 0.0) -> Client:
    """Return a client of the configured server, connected unless `lazy`.

    A lazy client connects at its first call; until that succeeds, every call fails with `RuntimeError`. A worker can't
    use a lazy client. Otherwise connecting is retried for `patience` seconds; 0: one attempt.

    Raises:
        TemporalAccessError: The server can't be reached, or `find_endpoint` failed.
    """
    endpoint = find_endpoint(settings)
    deadline = asyncio.get_running_loop().time() + patience
    with _logged_wait(endpoint):
        while True:
            try:
                return await asyncio.wait_for(_connect_once(endpoint, settings, lazy=lazy), CONNECT_SECONDS)
            except (RuntimeError, TimeoutError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise _unreachable(endpoint, error) from error
            await asyncio.sleep(RETRY_SECONDS)


@asynccontextmanager
async def outage_logged(client: Client, settings: Settings) -> AsyncIterator[None]:
    """Log why the server does not answer a lazy `client`, until it does; each reason once.

    Raises:
        TemporalAccessError: As `find_endpoint` does.
    """
    checking = asyncio.create_task(_log_until_reachable(client, find_endpoint(settings)))
    try:
        yield
    finally:
        while not checking.done():
            checking.cancel()  # a cancellation that coincides with an answer is lost
            await asyncio.wait([checking], timeout=CANCEL_SECONDS)


async def _log_until_reachable(client: Client, endpoint: Endpoint) -> None:
    logged = ""
    while True:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=CALL_TIMEOUT)
        except (RuntimeError, TimeoutError, RPCError) as error:
            reason = str(_unreachable(endpoint, error))
            if reason != logged:
                _log.warning("%s Until then every request is answered 503.", reason)
            logged = reason
        else:
            if logged:
                _log.warning("Temporal answers at %s.", endpoint.address)
            return
        await asyncio.sleep(HEALTH_SECONDS)


async def prepare_embedded(client: Client, *, patience: float = 0.0) -> None:
    """Prepare the embedded server's namespace as `prepare` does, and set its retention of ended sessions.

    A starting server rejects this, so it has `patience` seconds. Raises `TemporalAccessError`.
    """
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            await prepare(client)
            return await set_retention(client)
        except TemporalAccessError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def prepare(client: Client) -> None:
    """Register the search attributes of sessions; safe to repeat, also from several processes at once.

    Raises:
        TemporalAccessError: The server denies it, or an attribute of this name has another type.
    """
    missing = await missing_search_attributes(client)
    if not missing:
        return
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={key.name: _wire_type(key) for key in missing}
    )
    try:
        await client.operator_service.add_search_attributes(request, timeout=CALL_TIMEOUT)
    except RPCError as error:
        # Another process may have registered them meanwhile.
        if await missing_search_attributes(client):
            raise _unprepared(client, missing, error) from error


async def missing_search_attributes(client: Client) -> Sequence[SearchAttributeKey[Any]]:
    """Return the search attributes of sessions that the namespace lacks.

    Raises:
        TemporalAccessError: The server denies the request, or an attribute of this name has another type.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        answer = await client.operator_service.list_search_attributes(request, timeout=CALL_TIMEOUT)
    except RPCError as error:
        raise _unprepared(client, search_attributes.ALL, error) from error
    registered = answer.custom_attributes
    for key in search_attributes.ALL:
        if key.name in registered and registered[key.name] != _wire_type(key):
            raise TemporalAccessError(
                f"The namespace {client.namespace!r} has a search attribute {key.name} of another type than "
                f"{_type_name(key)}: remove it there, or use another namespace."
            )
    return [key for key in search_attributes.ALL if key.name not in registered]


async def set_retention(client: Client, *, days: int = RETENTION_DAYS) -> None:
    """Retain ended sessions for `days`, on the embedded server only; a dev server's default is one day.

    Raises:
        TemporalAccessError: The server denies it.
    """
    ttl = Duration()
    ttl.FromTimedelta(timedelta(days=days))
    config = NamespaceConfig(workflow_execution_retention_ttl=ttl)
    request = UpdateNamespaceRequest(namespace=client.namespace, config=config)
    try:
        if await retention(client) != timedelta(days=days):
            await client.workflow_service.update_namespace(request, timeout=CALL_TIMEOUT)
    except RPCError as error:
        raise TemporalAccessError(f"The retention of {client.namespace!r} cannot be set: {error.message}.") from error


async def retention(client: Client) -> timedelta:
    request = DescribeNamespaceRequest(namespace=client.namespace)
    answer = await client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
    return answer.config.workflow_execution_retention_ttl.ToTimedelta()


async def polling_workers(client: Client, task_queue: str) -> Sequence[str]:
    """Return the identities of the workers that poll `task_queue`. Raises `RPCError`."""
    return [poller.identity for poller in await pollers(client, task_queue)]


async def pollers(client: Client, task_queue: str) -> Sequence[PollerInfo]:
    """Return what Temporal knows of the workers that poll `task_queue`. Raises `RPCError`."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    oldest = time.time() - POLL_SECONDS
    return [poller for poller in answer.pollers if poller.last_access_time.ToSeconds() > oldest]


@contextmanager
def _logged_wait(endpoint: Endpoint) -> Iterator[None]:
    """Log that we wait for the server, if the block takes long."""
    loop = asyncio.get_running_loop()
    notice = loop.call_later(WAIT_NOTICE_SECONDS, _log.warning, "Waiting for Temporal at %s …", endpoint.address)
    try:
        yield
    finally:
        notice.cancel()


async def _connect_once(endpoint: Endpoint, settings: Settings, *, lazy: bool) -> Client:
    return await Client.connect(
        endpoint.address,
        namespace=endpoint.namespace,
        data_converter=DATA_CONVERTER,
        keep_alive_config=KEEP_ALIVE,
        grpc_compression=COMPRESSION[settings.grpc_compression],
        lazy=lazy,
        **endpoint.access,
    )


def _unreachable(endpoint: Endpoint, error: Exception) -> TemporalAccessError:
    reason = reason_of(error)
    up = f"Start it with `{command_line('up')}`, or set TEMPORAL_ADDRESS"
    fix = up if endpoint.embedded else reason.fix or "Check TEMPORAL_ADDRESS"
    return TemporalAccessError(f"Temporal cannot be reached at {endpoint.address} ({reason.text}). {fix}.")


def _unprepared(client: Client, missing: Sequence[SearchAttributeKey[Any]], error: RPCError) -> TemporalAccessError:
    if error.status == RPCStatusCode.NOT_FOUND:
        address = client.service_client.config.target_host
        return TemporalAccessError(
            f"Temporal at {address} has no namespace {client.namespace!r}. Set TEMPORAL_NAMESPACE, or create it with "
            f"`temporal operator namespace create --namespace {client.namespace}`."
        )
    names = ", ".join(f"{key.name} ({_type_name(key)})" for key in missing)
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED):
        return TemporalAccessError(
            f"The server does not let us register search attributes in {client.namespace!r}: "
            f"have its administrator add {names}."
        )
    return TemporalAccessError(f"{client.namespace!r} cannot be given the search attributes {names}: {error.message}.")


def _wire_type(key: SearchAttributeKey[Any]) -> IndexedValueType.ValueType:
    return IndexedValueType.ValueType(key.indexed_value_type)


def _type_name(key: SearchAttributeKey[Any]) -> str:
    return IndexedValueType.Name(_wire_type(key)).removeprefix("INDEXED_VALUE_TYPE_").capitalize()


class Reason(NamedTuple):
    """A problem as part of a sentence, and its fix; without `fix`, the address may be wrong."""

    text: str
    fix: str = ""


UNTRUSTED = Reason(
    "its TLS certificate is not from an authority that this machine trusts",
    "Set TEMPORAL_TLS_SERVER_CA_CERT_PATH to the authority's certificate",
)
KEY_REJECTED = Reason("it rejected the API key", "Check TEMPORAL_API_KEY")

_REASONS = {
    r"dns error": Reason("its host name is unknown"),
    r"InvalidCertificate\((Expired|NotValidYet)": Reason(
        "its TLS certificate is not valid now", "Renew it, or check the clocks of both machines"
    ),
    r"InvalidCertificate\(NotValidForName": Reason(
        "its TLS certificate is for another name", "Check TEMPORAL_ADDRESS, or set TEMPORAL_TLS_SERVER_NAME"
    ),
    r"InvalidCertificate": UNTRUSTED,
    r"AlertReceived": Reason(
        "it did not accept our side of TLS",
        "Check TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH",
    ),
    r"InvalidMessage": Reason("it does not use TLS, and we do", "Check TEMPORAL_TLS and TEMPORAL_ADDRESS"),
    r"code: Unauthenticated": KEY_REJECTED,
    r"code: PermissionDenied": Reason(
        "it does not permit this API key to use it", "Check TEMPORAL_API_KEY and TEMPORAL_NAMESPACE"
    ),
    r"connection closed|http2 error": Reason(
        "it closed the connection: it uses TLS and we don't, or it is no Temporal server",
        "Check TEMPORAL_TLS and TEMPORAL_ADDRESS",
    ),
}
"""By what the SDK's text contains; the first that fits counts."""

_OF_STATUS = {
    RPCStatusCode.UNAUTHENTICATED: KEY_REJECTED,
    RPCStatusCode.PERMISSION_DENIED: _REASONS["code: PermissionDenied"],
}


def reason_of(error: Exception) -> Reason:
    """Return why a client could not connect, or why its first call failed.

    >>> reason_of(RuntimeError('tonic::transport::Error(Transport, ConnectError(ConnectError("dns error", ...')).text
    'its host name is unknown'
    >>> reason_of(TimeoutError()).text
    'no answer'
    """
    if isinstance(error, RPCError) and error.status in _OF_STATUS:
        return _OF_STATUS[error.status]
    for pattern, reason in _REASONS.items():
        if re.search(pattern, str(error)):
            return reason
    quoted = re.findall(r'(?:message|error): "([^"]+)"', str(error))
    return Reason(quoted[-1] if quoted else str(error) or "no answer")


PAGE_EVENTS = 20
"""Enough for the outcome of the last workflow task, unless many signals followed it."""

LATER_PAGE_EVENTS = 500
"""Large, so that one or two further pages have the rest of a run."""

HISTORY_SECONDS = 2.0


async def newest_pages(
    client: Client, workflow_id: WorkflowId, *, run_id: str = ""
) -> AsyncGenerator[Sequence[HistoryEvent], None]:
    """Yield all events of a run in pages, newest first; without `run_id`, of the newest run. Raises `RPCError`."""
    token = b""
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                maximum_page_size=LATER_PAGE_EVENTS if token else PAGE_EVENTS,
                next_page_token=token,
            ),
            timeout=timedelta(seconds=HISTORY_SECONDS),
        )
        yield page.history.events
        token = page.next_page_token
        if not token:
            return
