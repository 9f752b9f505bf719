"""The text of tool results for APIs without a field for a call's status (AGT-7)."""

from turnkeeper.models.transcript.model_call import ModelMessage


def result_text(message: ModelMessage) -> str:
    r"""Return the text of a tool message, preceded by its status unless that is `ok`.

    >>> result_text(ModelMessage(role="tool", content="Read a.txt\n\none", status="ok"))
    'Read a.txt\n\none'
    >>> result_text(ModelMessage(role="tool", content="pay: outcome unknown", status="outcome_unknown"))
    '[outcome unknown] pay: outcome unknown'
    """
    if message.status in (None, "ok"):
        return message.content
    return f"[{message.status.replace('_', ' ')}] {message.content}"
