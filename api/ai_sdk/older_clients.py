"""The stream for clients of version 6 of the npm package `ai`, which end with an error at a chunk they don't know."""

from turnkeeper.api import problem_texts as texts
from turnkeeper.api.ai_sdk.chunks import ErrorChunk, Notice, SteeringDataChunk, UIMessageChunk

ANSWER_RESTARTED = ErrorChunk(
    type="error",
    errorText=texts.ANSWER_RESTARTED,
)


def chunk_for_version_6(chunk: UIMessageChunk) -> UIMessageChunk | None:
    """Return what version 6 is sent instead of a chunk; `None`: nothing.

    It can take back nothing that it has of a step. So where that is needed its stream ends, and begins anew when
    it is resumed.
    """
    match chunk["type"]:
        case "reset-step":
            return ANSWER_RESTARTED
        case "tool-approval-response":
            return None
        case "steering-message":
            text = "".join(part["text"] for part in chunk["parts"])
            return SteeringDataChunk(type="data-steering-message", id=chunk["id"], data=Notice(text=text))
        case _:
            return chunk
