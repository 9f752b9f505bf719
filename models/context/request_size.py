"""Estimated size of a request: of its head, and of all of it (CTX-6, CTX-7, AGT-9)."""

from turnkeeper.models.tokens import count_chars, estimate_tokens, tokens_of
from turnkeeper.models.transcript.attachments import estimated_chars
from turnkeeper.models.transcript.model_call import ModelRequest, RequestHead


def system_tokens(head: RequestHead) -> int:
    return estimate_tokens([{"content": head.system}])


def tools_tokens(head: RequestHead) -> int:
    return estimate_tokens({"content": tool.model_dump()} for tool in head.tools)


def head_tokens(head: RequestHead) -> int:
    """Estimate the tokens of the head.

    >>> head_tokens(RequestHead(system="Be brief."))
    3
    """
    return system_tokens(head) + tools_tokens(head)


def request_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens of a request with its large texts and attachments restored.

    >>> from turnkeeper.models.transcript.model_call import ModelMessage
    >>> messages = [ModelMessage(role="user", content="Hi"), ModelMessage(role="assistant", content="Hello!")]
    >>> request_tokens(ModelRequest(head=RequestHead(system="Be brief."), messages=messages))
    5
    """
    chars = sum(map(count_chars, request.messages))
    chars += sum(estimated_chars(one) for message in request.messages for one in message.attachments)
    return head_tokens(request.head) + tokens_of(chars)
