"""The stream for clients of version 6 of the npm package `ai`, which fail on chunks that they don't know."""

from turnkeeper.api.ai_sdk.chunks import ErrorChunk, Notice, SteeringDataChunk, UIMessageChunk

ANSWER_RESTARTED = ErrorChunk(
    type="error", errorText="The answer is being written again. The turn continues: resume the stream to see it."
)


def chunk_for_version_6(chunk: UIMessageChunk) -> UIMessageChunk | None:
    """Return the chunk that replaces `chunk` for version 6; `None` if there is none.

    Version 6 can't discard what it has of a step. Where that is needed the stream ends, and the client gets the step
    anew when it resumes.
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
