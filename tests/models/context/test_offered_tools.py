"""Tools that a model is not offered, in the context view (CTX-8)."""

import pytest

from turnkeeper.models.http_responses import FixedPart
from turnkeeper.models.session.views import fixed_part
from turnkeeper.models.transcript.model_call import RequestHead, ToolSpec


@pytest.mark.parametrize("model", ["openai:gpt-5.5", "openai-chat:qwen3"])
def test_ctx_8_tools_beyond_an_apis_limit_are_listed_as_not_offered(model):
    head = RequestHead(tools=[*(ToolSpec(name=f"t{n}") for n in range(129)), ToolSpec(name="now", built_in=True)])
    view: FixedPart = fixed_part(head, model=model)
    assert view.tools_not_offered == ["t127", "t128"]
    assert len(view.tools) == 130
    assert fixed_part(head, model="anthropic:claude-sonnet-5-5").tools_not_offered == []
