"""Every provider passes the conformance kit (AGT-3, AGT-4, AGT-9, AGT-11)."""

from collections.abc import Callable

import pytest

from tests.vendors.apis import WIRES
from tests.vendors.chat_wire import ChatWire
from tests.vendors.offline_script import OfflineScript
from turnkeeper.models.ids import BUILT_IN_PROVIDERS
from turnkeeper.testing.provider_kit import Check, checks_for
from turnkeeper.testing.vendor_server import FaultServer

SERVERS: dict[str, Callable[[], FaultServer]] = {
    **WIRES,
    "openai-chat, as text": lambda: ChatWire("text"),
    "offline": OfflineScript,
}


def test_agt_11_every_provider_has_a_fault_server() -> None:
    assert {*BUILT_IN_PROVIDERS} - {*SERVERS} == set()


CASES = [
    pytest.param(make, check, id=f"{name}: {check.__name__}")
    for name, make in SERVERS.items()
    for check in checks_for(make)
]


@pytest.mark.parametrize(("make", "check"), CASES)
async def test_agt_11_every_provider_passes_the_kit(make: Callable[[], FaultServer], check: Check) -> None:
    await check(make)
