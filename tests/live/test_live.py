"""Real calls to the vendors: a session with thinking and a tool for each (AGT-11).

Only `make test-live` runs this. It asks the vendors whose key is in the environment, for a few cents, and says of the
others that they were left out:

    ANTHROPIC_API_KEY                    the model that this key chooses for new sessions
    OPENAI_API_KEY                       likewise
    TURNKEEPER_OPENAI_CHAT__BASE_URL     and LIVE_CHAT_MODEL, a model's name there that can call tools; the endpoint's
                                         key and protocol, where it needs them, by their own settings
"""

import os
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.live.story import has_thought, read_and_remember
from turnkeeper.models.settings.settings import VENDORS_MODELS

pytestmark = pytest.mark.live

CHAT = ("TURNKEEPER_OPENAI_CHAT__BASE_URL", "LIVE_CHAT_MODEL")


def needs(*variables: str) -> pytest.MarkDecorator:
    missing = [variable for variable in variables if not os.environ.get(variable)]
    return pytest.mark.skipif(bool(missing), reason=f"not set: {', '.join(missing)}")


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=needs(variable), id=model) for variable, model in VENDORS_MODELS.items()]
)
async def test_agt_11_a_vendors_model_thinks_uses_a_tool_and_continues(
    temporal: Client, model: str, tmp_path: Path
) -> None:
    assert has_thought(await read_and_remember(temporal, model, tmp_path))


@needs(*CHAT)
async def test_agt_11_an_endpoints_model_uses_a_tool_and_continues(temporal: Client, tmp_path: Path) -> None:
    await read_and_remember(temporal, f"openai-chat:{os.environ['LIVE_CHAT_MODEL']}", tmp_path)
