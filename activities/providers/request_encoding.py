"""Encoding requests, for all vendors: blocks as they came, names, ids of calls (AGT-3).

A step goes back to the API that it came from block for block, with its ids, unless an earlier step has the same ids.
Otherwise, and for any other API, it is encoded again from its parts, with ids that the vendor accepts and that are
unique within a request. Everything depends only on the messages so far, in their order, so that the beginning of a
conversation is always encoded the same.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count

from pydantic import JsonValue

from turnkeeper.models.transcript.model_call import ModelMessage

MAX_NAME_CHARS = 64

Block = dict[str, JsonValue]
"""One of a vendor's own blocks."""

OPENING = "(The conversation began earlier.)"
"""A user's message for conversations that begin with the assistant: with a summary, or a note of what is left out."""

_ODD = re.compile(r"[^A-Za-z0-9_-]")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def opened(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages, with `OPENING` before them unless a user speaks first, as some vendors demand.

    >>> [message.role for message in opened([ModelMessage(role="assistant", content="[3 earlier turns ...]")])]
    ['user', 'assistant']
    """
    if not messages or messages[0].role == "user":
        return messages
    return [ModelMessage(role="user", content=OPENING), *messages]


def own_items(message: ModelMessage, api: str, *, call_id_of: Callable[[Block], str | None]) -> list[Block] | None:
    """Return the vendor's own blocks of the message if they can go back to `api`; otherwise `None`.

    `call_id_of` returns the id of a block that is a tool call. The calls among the blocks must be those of the message,
    since every vendor rejects a call without its result, and have names that vendors accept: models make up others.
    """
    state = message.state
    if state is None or state.api != api or state.blob is not None:
        return None
    items = [item for item in state.items if isinstance(item, dict)]
    ids = [call_id for item in items if (call_id := call_id_of(item)) is not None]
    is_complete = len(items) == len(state.items) > 0
    is_answered = ids == [call.id for call in message.tool_calls] and len(set(ids)) == len(ids)
    is_sendable = all(call.name == sendable_name(call.name) for call in message.tool_calls)
    return items if is_complete and is_answered and is_sendable else None


def sendable_name(name: str) -> str:
    """Return a name or id in the form that every vendor accepts: 1 to 64 letters, digits, `_` and `-`.

    >>> sendable_name("files.read it!"), sendable_name("")
    ('files_read_it_', '_')
    """
    return _ODD.sub("_", name)[:MAX_NAME_CHARS] or "_"


def sendable_id(vendor_id: str, number: int) -> str:
    """Return the candidate `number`, from 1, for an id that most vendors accept.

    >>> sendable_id("call:1", 1), sendable_id("call:1", 2)
    ('call_1', 'call_1-2')
    """
    name = sendable_name(vendor_id)
    return name if number == 1 else f"{name[: MAX_NAME_CHARS - len(str(number)) - 1]}-{number}"


def short_id(vendor_id: str, number: int) -> str:
    """Return the candidate `number`, from 1, for an id of nine letters and digits, as Mistral's templates demand.

    >>> short_id("call_1", 1), short_id("call_1", 2), short_id("D681PevKs", 1)
    ('ea2e877e7', 'baf62cb90', 'D681PevKs')
    """
    if number == 1 and _SHORT_ID.fullmatch(vendor_id):
        return vendor_id
    return sha256(f"{number} {vendor_id}".encode()).hexdigest()[:9]


class CallIds:
    """Assigns the ids of one request's tool calls. Call its methods for the messages in their order.

    `new_id` returns candidates for the id of a call, by the vendor's id and a number from 1.

    >>> from turnkeeper.models.transcript.model_call import CallPart
    >>> calls = [CallPart(kind="call", id="c:1", name="look"), CallPart(kind="call", id="c:1", name="look")]
    >>> ids = CallIds()
    >>> ids.new_ids_for(ModelMessage(role="assistant", tool_calls=calls))
    ['c_1', 'c_1-2']
    >>> [ids.id_for_result(ModelMessage(role="tool", call_id="c:1")) for _ in calls]
    ['c_1', 'c_1-2']
    """

    def __init__(self, new_id: Callable[[str, int], str] = sendable_id) -> None:
        self._new_id = new_id
        self._used_ids: set[str] = set()
        self._unanswered: dict[str, list[str]] = {}

    def reserve_own_ids(self, message: ModelMessage) -> bool:
        """Return whether the message can keep its ids, and reserve them if so.

        Some servers use the same ids in each answer, while vendors require unique ids.
        """
        vendor_ids = [call.id for call in message.tool_calls]
        are_free = len(set(vendor_ids)) == len(vendor_ids) and self._used_ids.isdisjoint(vendor_ids)
        if are_free:
            self._open(message, vendor_ids)
        return are_free

    def new_ids_for(self, message: ModelMessage, *, keeps: Callable[[str], bool] | None = None) -> list[str]:
        """Return new ids for the message's calls, in their order; those that `keeps` accepts stay if they are free."""
        ids: list[str] = []
        for call in message.tool_calls:
            stays = keeps is not None and keeps(call.id) and call.id not in self._used_ids
            ids.append(call.id if stays else self._free(call.id))
            self._used_ids.add(ids[-1])
        self._open(message, ids)
        return ids

    def id_for_result(self, message: ModelMessage) -> str:
        vendor_id = message.call_id or ""
        waiting = self._unanswered.get(vendor_id)
        return waiting.pop(0) if waiting else self._new_id(vendor_id, 1)

    def _open(self, message: ModelMessage, ids: list[str]) -> None:
        # The results of a step follow it directly, so calls of an earlier step can't be meant any more.
        self._used_ids.update(ids)
        self._unanswered = {}
        for call, call_id in zip(message.tool_calls, ids, strict=True):
            self._unanswered.setdefault(call.id, []).append(call_id)

    def _free(self, call_id: str) -> str:
        return next(new for number in count(1) if (new := self._new_id(call_id, number)) not in self._used_ids)
