"""The scripted model, as a vendor that does what a test wants."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from turnkeeper.activities.providers.offline.provider import OfflineModel, OfflineProvider, ScriptedModel
from turnkeeper.testing.vendor_server import BOUND, Answer, Fault, FaultServer


class OfflineScript(FaultServer):
    """`offline:script`; what is queued is written to its script."""

    model = "offline:script/kit"

    def __init__(self) -> None:
        self._responses: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="script-")
        return self

    async def __aexit__(self, *failure: Any) -> None:
        self._folder.cleanup()

    def provider(self, *, silence_timeout: float = BOUND) -> OfflineProvider:
        return OfflineProvider(OfflineModel(), ScriptedModel(Path(self._folder.name)))

    def script(self, *replies: Answer | dict[str, Any]) -> None:
        self._responses += [reply if isinstance(reply, dict) else self._response(reply) for reply in replies]
        (Path(self._folder.name) / "kit.json").write_text(json.dumps({"responses": self._responses}))

    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> dict[str, Any]:
        error_type = "auth" if fault == "permission" else fault
        seconds = (headers or {}).get("retry-after")
        return {"fault": {"error_type": error_type, "retry_after": seconds and float(seconds)}}

    def cut(self, answer: Answer) -> dict[str, Any]:
        return {**self._response(answer), "cut": True}

    def _response(self, answer: Answer) -> dict[str, Any]:
        if answer.stop == "refusal":
            return self.fault("refusal")  # type: ignore[arg-type]  # the script knows it
        calls = [{"id": call.id, "name": call.name, "args": call.args} for call in answer.calls]
        return {"think": answer.think or None, "text": answer.text or None, "calls": calls}
