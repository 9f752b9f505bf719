"""Reads a document that somebody wants to import, and checks everything that the code relies on (SES-18).

A document comes from anywhere: from this version, an earlier or later one, or a text editor. `read_document` checks its
form, `check_document` whether its parts agree, and `copy_of_document` whether a session can begin with it: a
contradiction in its state would fail a workflow task forever.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import chain, islice, pairwise

from pydantic import JsonValue, ValidationError
from pydantic_core import from_json

from turnkeeper.features.copies.document.copied import (
    CopiedTurns,
    Copy,
    attachments_in,
    attachments_in_view,
    context_through,
    copy_with_new_view,
    session_form,
    state_of_copy,
    texts_in_view,
)
from turnkeeper.features.copies.document.document import FORMAT, VERSION, ExportedTurn, SessionDocument
from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import is_id
from turnkeeper.models.session.messages import CarriedState, SessionInput
from turnkeeper.models.transcript.attachments import (
    HASH_PATTERN,
    MAX_ATTACHMENTS,
    Attachment,
    check_attachments,
    check_content,
    with_true_type,
)
from turnkeeper.models.transcript.conversation import BlobRef, ConversationMessage, ModelStep, UserStep
from turnkeeper.models.transcript.large_texts import refs_in
from turnkeeper.models.transcript.model_call import ModelMessage
from turnkeeper.models.transcript.transcript import carried_size
from turnkeeper.models.wire import field_path, reason_of

BYTES_PER_VALUE = 64
"""A document may have a JSON value for as many of the bytes that it may have: small values take far more memory than
text. Those of real sessions have one for some hundred bytes."""

MAX_COUNT = 2**31
"""Upper bound of counts; it fits Temporal's number types."""

MAX_STATE_BYTES = 1_500_000
"""Maximum of what a session begins with, as JSON: at 2 MB Temporal fails the workflow task."""

MAX_TURN_BYTES = 1_000_000
"""Maximum of a turn without its archived steps, as JSON: more than a session can carry of it."""


MIN_TURNS_BETWEEN = 100
"""Turns after which an id may be another turn's: a session remembers 1,000 ids, of steering prompts too (SES-6)."""


_QUOTE = ord('"')
_STRINGS_AND_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
"""Outside strings, one of these marks stands before every value but the first and those of keys, which have a comma."""


def count_values(body: bytes, *, limit: int) -> int:
    """Return about how many JSON values there are in `body`, without making any; beyond `limit`: any larger number.

    At least as many as there are, and at most twice as many. An empty list has 2 bytes here, and 72 as an object.

    >>> count_values(b'{"a, b": [1, 2, {}]}', limit=10), count_values(b"[[], [], []]", limit=4) > 4
    (6, True)
    """
    marks = (match for match in _STRINGS_AND_MARKS.finditer(body) if body[match.start()] != _QUOTE)
    return 1 + sum(1 for _ in islice(marks, limit))


def read_document(body: bytes, *, max_values: int) -> SessionDocument:
    """Return the document in `body`, in its form of today. Raises `RejectedError` naming the first wrong field."""
    if count_values(body, limit=max_values) > max_values:
        raise RejectedError("invalid", f"body: may have {max_values:,} JSON values.", field="body")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise RejectedError("invalid", "body: is not valid JSON.", field="body") from None
    _raise_first(_wrong_form(value))
    try:
        return SessionDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = field_path(first["loc"]) or "body"
        raise RejectedError("invalid", f"{field}: {reason_of(first)}.", field=field) from None


def check_document(document: SessionDocument) -> None:
    """Check that the parts of the document agree. Raises `RejectedError` naming the first wrong field.

    Attachments that are of another type than they say get their own: vendors would refuse every later request.
    """
    _raise_first(chain(_wrong_turns(document), _wrong_contents(document), _wrong_context(document)))


def copy_of_document(document: SessionDocument, config: SessionInput, *, now: datetime) -> tuple[Copy, CarriedState]:
    """Return what a session with this configuration begins with. Raises `RejectedError` naming the wrong field."""
    copied = CopiedTurns(config.history, config.limits)
    for exported in document.turns:
        copied.add(exported)
    if document.context is None:
        copy = copy_with_new_view(config, copied, turns=copied.newest_turns())
    else:
        turns = [session_form(exported) for exported in document.turns[document.context.archived_turns :]]
        copy = Copy(turns, context_through(document.context.state, copied.count))
        _raise_first(_wrong_state(copy, copied.count))
    state = state_of_copy(copied, copy, now=now)
    size = len(state.model_dump_json().encode())
    if size > MAX_STATE_BYTES:
        _raise_first(iter([("context.archived_turns", f"leaves {size:,} bytes, and {MAX_STATE_BYTES:,} are allowed")]))
    return copy, state


Complaints = Iterator[tuple[str, str]]


def _raise_first(complaints: Complaints) -> None:
    for field, complaint in complaints:
        raise RejectedError("invalid", f"{field}: {complaint}.", field=field)


def _wrong_form(value: JsonValue) -> Complaints:
    """Yield what is checked one by one, since validation reports every wrong item: of 100,000 in ten seconds."""
    if not isinstance(value, dict):
        yield "body", "must be an object"
        return
    if value.get("format") != FORMAT:
        yield "format", f"must be {FORMAT!r}"
    version = value.get("version")
    if isinstance(version, int) and version > VERSION:
        yield "version", f"a later version has written it; this one reads versions up to {VERSION}"
    for field in ("texts", "attachments"):
        contents = value.get(field)
        for name, content in contents.items() if isinstance(contents, dict) else ():
            if not re.fullmatch(HASH_PATTERN, name):
                yield field_path([field, name]), "must be named by its SHA-256 in hex"
            if not isinstance(content, str):
                yield field_path([field, name]), "must be a string"


def _wrong_turns(document: SessionDocument) -> Complaints:
    if document.session.turn_count != len(document.turns):
        yield "turns", f"has {len(document.turns):,} items, and session.turn_count is {document.session.turn_count:,}"
    revision, places = 0, dict[str, int]()
    for index, exported in enumerate(document.turns):
        field, turn = f"turns[{index}]", exported.turn
        if exported.number != index + 1:
            yield f"{field}.number", f"must be {index + 1:,}: turns are in order and none is missing"
        if not is_id(turn.id):
            yield f"{field}.turn.id", "is not a valid id"
        earlier = places.get(turn.id)
        if earlier is not None and index - earlier <= MIN_TURNS_BETWEEN:
            yield f"{field}.turn.id", f"is the id of turns[{earlier}] too"
        places[turn.id] = index
        if not turn.is_complete:
            yield f"{field}.turn", "has not ended"
        if not revision <= turn.revision < MAX_COUNT:
            yield f"{field}.turn.revision", f"is less than that of the turn before, or not less than {MAX_COUNT:,}"
        revision = turn.revision
        for name, usage in (("usage", turn.usage), ("tasks_usage", turn.tasks_usage)):
            for part, number in usage or ():
                if number is not None and not 0 <= number < MAX_COUNT:
                    yield f"{field}.turn.{name}.{part}", f"0 to {MAX_COUNT:,} are allowed"
        yield from _wrong_steps(field, exported)


def _wrong_steps(field: str, exported: ExportedTurn) -> Complaints:
    turn = exported.turn
    if turn.steps_omitted:
        yield f"{field}.turn.steps_omitted", "must be 0: all steps are in the document"
    if exported.archived_steps > len(turn.steps):
        yield f"{field}.archived_steps", f"the turn has {len(turn.steps):,} steps"
    for number, step in enumerate(turn.steps):
        calls = step.tool_calls if isinstance(step, ModelStep) else ()
        if any(call.result is None for call in calls):
            yield f"{field}.turn.reasoning_trajectory.steps[{number}]", "has a tool call without a result"
    if carried_size(session_form(exported)) > MAX_TURN_BYTES:
        yield f"{field}.turn", f"may have {MAX_TURN_BYTES:,} bytes of JSON without its archived steps"


def _wrong_contents(document: SessionDocument) -> Complaints:
    """Yield what is wrong with texts and attachments: other contents than their names say, or none.

    Raises `RejectedError` for an attachment that no prompt may have.
    """
    for name, text in document.texts.items():
        if sha256(text.encode()).hexdigest() != name:
            yield f"texts.{name}", "is another text than its hash says"
    contents: dict[str, bytes] = {}
    for name, encoded in document.attachments.items():
        try:
            contents[name] = b64decode(encoded, validate=True)
        except ValueError:
            yield f"attachments.{name}", "is no base64"
            return
        if sha256(contents[name]).hexdigest() != name:
            yield f"attachments.{name}", "is another content than its hash says"
    lost = set(document.missing)
    for field, refs, attachments in _references(document):
        yield from _wrong_texts(field, refs, document.texts, lost)
        check_attachments(attachments[:MAX_ATTACHMENTS], field=f"{field}.attachments")
        yield from _wrong_attachments(field, attachments, contents, lost)


def _references(document: SessionDocument) -> Iterator[tuple[str, Iterable[BlobRef], list[Attachment]]]:
    for index, exported in enumerate(document.turns):
        yield f"turns[{index}].turn", refs_in(exported.turn), []
        for attachments in attachments_in(exported.turn):
            yield f"turns[{index}].turn", (), attachments
    for name, refs in _entries(document):
        yield f"context.state.{name}", texts_in_view(refs), []
        for attachments in attachments_in_view(refs):
            yield f"context.state.{name}", (), attachments


def _wrong_texts(field: str, refs: Iterable[BlobRef], texts: dict[str, str], lost: set[str]) -> Complaints:
    for ref in refs:
        text = texts.get(ref.hash)
        if text is None and ref.hash not in lost:
            yield field, f"refers to the text {ref.hash[:64]!a}, which is neither in texts nor in missing"
        if text is not None and (len(text), len(text.encode())) != (ref.chars, ref.bytes):
            yield field, f"says that the text {ref.hash} has another number of characters or bytes than it has"
        if text is None and not 0 <= ref.chars <= ref.bytes < MAX_COUNT:
            yield field, f"says that the text {ref.hash} has a size that no text can have"


def _wrong_attachments(
    field: str, attachments: list[Attachment], contents: dict[str, bytes], lost: set[str]
) -> Complaints:
    if len(attachments) > MAX_ATTACHMENTS:
        yield f"{field}.attachments", f"may have {MAX_ATTACHMENTS} items"
    for index, attachment in enumerate(attachments):
        name = attachment.hash
        if name is None:
            continue
        content = contents.get(name)
        if content is None:
            if name not in lost:
                yield field, f"refers to the attachment {name}, which is neither in attachments nor in missing"
            continue
        if attachment.bytes != len(content):
            yield field, f"says that the attachment {name} has another number of bytes than it has"
        if complaint := check_content(content, None):
            yield f"attachments.{name}", complaint
        attachments[index] = with_true_type(attachment, content)


def _wrong_context(document: SessionDocument) -> Complaints:
    context = document.context
    if context is None:
        return
    count = len(document.turns)
    if context.archived_turns > max(0, count - 1):
        yield "context.archived_turns", f"may be {max(0, count - 1):,}: the newest turn is never archived"
    for name, refs in _entries(document):
        for index, ref in enumerate(refs):
            if ref.messages and (complaint := _wrong_messages(ref.messages)):
                yield f"context.state.{name}[{index}].messages", complaint
            if not ref.messages and 0 < ref.number <= count:
                expected = document.turns[ref.number - 1].turn.id
                if ref.turn != expected:
                    yield f"context.state.{name}[{index}].turn", f"is not the id of turn {ref.number:,}"
            if not 0 < ref.number <= count:
                yield f"context.state.{name}[{index}]", f"is of turn {ref.number:,}, and the document has {count:,}"
    summary = context.state.view.summary
    for first, last in summary.turns if summary else []:
        if not 1 <= first <= last <= count:
            yield "context.state.view.summary.turns", f"is of turn {last:,}, and the document has {count:,}"
    for number, chars in context.state.cut.items():
        if not 0 <= chars < MAX_COUNT:
            yield f"context.state.cut.{number}", f"0 to {MAX_COUNT:,} are allowed"
    places = [(ref.number, -1 if ref.step is None else ref.step) for ref in context.state.view.entries]
    if any(later <= earlier for earlier, later in pairwise(places)):
        yield "context.state.view.entries", "must be in the order of turns and steps, and each there once"


def _entries(document: SessionDocument) -> list[tuple[str, list[ViewRef]]]:
    if document.context is None:
        return []
    state = document.context.state
    return [("view.entries", list(state.view.entries)), ("waiting", list(state.waiting))]


def _wrong_messages(messages: tuple[ModelMessage, ...]) -> str | None:
    """Return what is wrong with the messages of an entry; vendors refuse calls without results, forever.

    >>> _wrong_messages((ModelMessage(role="user", content="Hi"),))
    >>> _wrong_messages((ModelMessage(role="tool", content="42"),))
    'are neither one message nor calls with their results'
    """
    first, *results = messages
    if first.role == "tool" or len(results) != len(first.tool_calls):
        return "are neither one message nor calls with their results"
    if first.tool_calls and first.role != "assistant":
        return "have tool calls of somebody else than the model"
    for call, result in zip(first.tool_calls, results, strict=True):
        if result.role != "tool" or result.call_id != call.id:
            return "have a result of another call"
    return None


def _wrong_state(copy: Copy, count: int) -> Complaints:
    """Yield what is wrong with the turns that the session itself has, and with what its model sees of `count` turns."""
    context, turns = copy.context, {turn.id: turn for turn in copy.turns}
    if len(turns) < len(copy.turns):
        yield "turns", "two of those that are not archived have the same id"
    for prefix, model in (("", context), ("view.", context.view), ("limit.", context.limit)):
        for name, number in model or ():
            if not isinstance(number, int | float) or isinstance(number, bool):
                continue
            if not 0 <= number < MAX_COUNT:
                yield f"context.state.{prefix}{name}", f"0 to {MAX_COUNT:,} are allowed"
    if context.view.segment < 1:
        yield "context.state.view.segment", "counts from 1"
    for name, refs in (("view.entries", context.view.entries), ("waiting", context.waiting)):
        for index, ref in enumerate(refs):
            if complaint := _wrong_ref(ref, turns, count):
                yield f"context.state.{name}[{index}]", complaint


def _wrong_ref(ref: ViewRef, turns: dict[str, ConversationMessage], turn_count: int) -> str | None:
    if not 1 <= ref.number <= turn_count or not 0 <= ref.retried < ref.number:
        return "refers to an unknown turn"
    if ref.messages:
        return None
    turn = turns.get(ref.turn)
    if turn is None:
        return "refers to a turn that does not exist"
    first = 0 if ref.step is None else ref.step
    steps = range(first, first + ref.added + (ref.step is not None))
    if ref.added < 0 or any(not 0 <= index - turn.steps_omitted < len(turn.steps) for index in steps):
        return "refers to a step that does not exist"
    if ref.added and any(not isinstance(turn.steps[index - turn.steps_omitted], UserStep) for index in steps):
        return "has prompts added that are none"
    step = None if ref.step is None else turn.steps[ref.step - turn.steps_omitted]
    if isinstance(step, ModelStep) and any(call.result is None for call in step.tool_calls):
        return "refers to a call that has no result"
    return None
