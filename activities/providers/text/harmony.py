"""Reading an answer in the tokens of OpenAI's open models, where a server has not read them (CTX-13).

<|channel|>analysis<|message|>The clock.<|end|><|start|>assistant<|channel|>final<|message|>It is noon.<|return|>
<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>
"""

import re
from dataclasses import dataclass, field

from turnkeeper.activities.providers.answer_fields import arguments_of
from turnkeeper.activities.providers.text.written_calls import WrittenCall

HARMONY_STARTS = ("<|channel|>", "<|start|>assistant")
"""How such an answer begins."""

_MESSAGE = re.compile(
    r"\s*(?:<\|start\|>assistant)?(?P<header>[^<]*<\|channel\|>(?P<channel>\w+)[^<]*(?:<\|constrain\|>[^<]*)?)"
    r"<\|message\|>(?P<content>.*?)(?:<\|(?:end|return|call)\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"\bto=functions\.([\w-]+)")


@dataclass
class HarmonyAnswer:
    """The messages of an answer, by what they are."""

    thought: str = ""
    text: str = ""
    calls: list[WrittenCall] = field(default_factory=list)


def harmony_in(text: str) -> HarmonyAnswer | None:
    """Return what an answer says; `None` if it is no sequence of such messages.

    >>> harmony_in("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>")
    HarmonyAnswer(thought='Hm.', text='So.', calls=[])
    >>> harmony_in("<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>").calls
    [WrittenCall(name='now', args={})]
    """
    answer, position = HarmonyAnswer(), 0
    while text[position:].strip():
        message = _MESSAGE.match(text, position)
        if message is None:
            return None
        recipient = _RECIPIENT.search(message["header"])
        if recipient:
            answer.calls.append(WrittenCall(recipient[1], arguments_of(message["content"])))
        elif message["channel"] == "analysis":
            answer.thought += message["content"]
        else:
            answer.text += message["content"]
        position = message.end()
    return answer
