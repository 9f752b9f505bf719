"""The provider `offline`: the offline model and the scripts (AGT-4)."""

from collections.abc import AsyncGenerator

from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError, Provider
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse


class OfflineProvider:
    """`offline:` is the offline model; `offline:script` and `offline:script/NAME` play a script."""

    def __init__(self, model: Provider, scripted: Provider) -> None:
        self._model = model
        self._scripted = scripted

    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncGenerator[Delta | ModelResponse, None]:
        return self._model_for(name).stream(name, request, info)

    def _model_for(self, name: str) -> Provider:
        if not name:
            return self._model
        if name.partition("/")[0] == "script":
            return self._scripted
        raise ModelError("not_found", f"there is no offline model {name!r}; there are '', 'script' and 'script/NAME'")
