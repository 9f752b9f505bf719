"""Putting together the calls of an answer from the pieces of a Chat Completions stream (AGT-4). Pure.

An honest server numbers its calls, names each once, and sends its arguments in pieces. Others number all calls 0, omit
ids, repeat name or id in every piece, or send arguments again as a whole. So a piece belongs to the latest call of its
`index`, or to the latest of all without one, unless it begins another call:

- it has another id and a name,
- or a name, and the arguments before it are complete (the same name and arguments again are a repetition),
- or the name of another tool that is no continuation of the latest name,
- or a name, in the chunk in which the latest call began, and that has no id.

Arguments that are no JSON object at the end may be one that was resent, or several of one tool (`objects_in`). Those of
an honest server are one object, so nothing of this concerns it.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from turnkeeper.activities.providers.answer_fields import arguments_of, join_pieces, objects_in
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.wire.answer_stream import FieldAccumulator
from turnkeeper.activities.providers.wire.transport import Event
from turnkeeper.models.transcript.model_call import CallPart

_OF_A_CALL = frozenset({"index", "id", "type", "function"})


@dataclass
class _Call:
    """A call while it arrives."""

    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_fields: FieldAccumulator = field(default_factory=FieldAccumulator)

    @property
    def is_complete(self) -> bool:
        """Return whether its arguments seem complete."""
        return self.has_arguments and isinstance(arguments_of(join_pieces(self.arguments)), dict)

    @property
    def has_arguments(self) -> bool:
        return any(piece.strip() for piece in self.arguments)


@dataclass(frozen=True)
class _Piece:
    """A piece of a call, in one form."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra_fields: Block

    @classmethod
    def from_event(cls, event: Event) -> "_Piece":
        function = event.get("function") or {}
        index, own_id, arguments = event.get("index"), event.get("id"), function.get("arguments")
        return cls(
            index=int(index) if isinstance(index, str) and index.isdecimal() else index,
            id=str(own_id) if isinstance(own_id, int) else own_id or "",
            name=function.get("name") or "",
            # Some servers send an object instead of its text.
            arguments=arguments or "" if isinstance(arguments, str | None) else json.dumps(arguments),
            extra_fields={key: value for key, value in event.items() if key not in _OF_A_CALL},
        )


class ChatCalls:
    """The calls of one answer while they arrive. `tools` are the names of the offered tools."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, events: Iterable[Event]) -> list[str]:
        """Add the pieces of one chunk; return the names of the calls that begin in it."""
        earlier = len(self._calls)
        for event in events:
            piece = _Piece.from_event(event)
            call = self._call_of(piece, new_calls=self._calls[earlier:])
            if call is None:
                call = _Call(index=piece.index, id=piece.id)
                self._calls.append(call)
            call.id = call.id or piece.id
            call.name = self._joined_name(call.name, piece.name)
            if piece.arguments:
                call.arguments.append(piece.arguments)
            for key, value in piece.extra_fields.items():
                call.extra_fields.add(key, value)
        return [call.name for call in self._calls[earlier:]]

    def complete(self, *, request: int) -> list[tuple[CallPart, Block]]:
        """Return the calls, each with its unknown fields. Missing and duplicate ids are replaced."""
        parts: list[tuple[CallPart, Block]] = []
        used_ids: set[str] = set()
        for call in self._calls:
            own_id, fields = join_pieces([call.id]), call.extra_fields.fields()
            for args in objects_in(call.arguments):
                call_id = own_id if own_id and own_id not in used_ids else f"call_{request}_{len(parts)}"
                used_ids.add(call_id)
                parts.append((CallPart(kind="call", id=call_id, name=join_pieces([call.name]), args=args), fields))
                fields = {}
        return parts

    def _call_of(self, piece: _Piece, *, new_calls: Sequence[_Call]) -> _Call | None:
        """Return the call that a piece belongs to; `None` if it begins one."""
        same_index = (call for call in reversed(self._calls) if piece.index is None or call.index == piece.index)
        latest = next(same_index, None)
        if latest is None or not piece.name:
            return latest
        is_same = bool(piece.id) and piece.id == latest.id
        if piece.id and latest.id and not is_same:
            return None
        if any(call is latest for call in new_calls) and not latest.id and not self._is_open(latest):
            return None
        return latest if self._continues(latest, piece, is_same=is_same) else None

    def _is_open(self, call: _Call) -> bool:
        """Return whether the call has a beginning of arguments only."""
        return call.has_arguments and not call.is_complete

    def _continues(self, latest: _Call, piece: _Piece, *, is_same: bool) -> bool:
        """Return whether a piece with a name continues the latest call."""
        if latest.is_complete:
            is_repeated = not piece.arguments.strip() or piece.arguments == join_pieces(latest.arguments)
            return piece.name == latest.name and (is_same or (piece.index is not None and is_repeated))
        if piece.name == latest.name or piece.name not in self._tools:
            return True
        is_all_so_far = piece.name.startswith(latest.name) and latest.name not in self._tools
        return not latest.has_arguments and (is_all_so_far or self._is_beginning(latest.name + piece.name))

    def _joined_name(self, name: str, piece: str) -> str:
        """Return a name with its next piece: some servers send pieces, others all of it, or all so far, each time."""
        if piece == name:
            return name
        is_all_so_far = bool(name) and piece.startswith(name) and self._is_beginning(piece)
        return piece if is_all_so_far and not self._is_beginning(name + piece) else name + piece

    def _is_beginning(self, name: str) -> bool:
        return any(tool.startswith(name) for tool in self._tools)
