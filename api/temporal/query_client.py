"""A client that sends each query and list request once.

The SDK retries queries itself: with a full query buffer only after a second or more, so that a caller that waits two
seconds gets one retry. The gateway retries faster (`session_reader.py`). The SDK also retries lists with a page token
that Temporal can't read (`listing.py`).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from temporalio.client import Client
from temporalio.service import ServiceClient

_ONCE = frozenset({"query_workflow", "list_workflow_executions"})


def query_client(client: Client) -> Client:
    """Return a client on the same connection that doesn't retry queries and lists."""
    config = client.config()
    config["service_client"] = _QueriesOnce(client.service_client)
    return Client(**config)


class _QueriesOnce(ServiceClient):
    def __init__(self, service: ServiceClient) -> None:
        super().__init__(service.config)
        self._service = service

    @property
    def worker_service_client(self) -> Any:
        return self._service.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        self._service.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        self._service.update_api_key(api_key)

    async def _rpc_call(
        self,
        rpc: str,
        req: Message,
        resp_type: type[Any],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109  # the SDK's own method
    ) -> Any:
        return await self._service._rpc_call(
            rpc,
            req,
            resp_type,
            service=service,
            retry=retry and rpc not in _ONCE,
            metadata=metadata,
            timeout=timeout,
        )
