"""Tool results where the API has no field for how a call ended (AGT-7): the text says it."""

from turnkeeper.models.transcript.model_call import ModelMessage


def result_text(message: ModelMessage) -> str:
    r"""Return the text of a tool message, its status before it unless that is `ok`.

    >>> result_text(ModelMessage(role="tool", content="Read a.txt\n\none", status="ok"))
    'Read a.txt\n\none'
    >>> result_text(ModelMessage(role="tool", content="pay: outcome unknown", status="outcome_unknown"))
    '[outcome unknown] pay: outcome unknown'
    """
    if message.status in (None, "ok"):
        return message.content
    return f"[{message.status.replace('_', ' ')}] {message.content}"
