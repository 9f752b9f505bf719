"""What a request changes, and who watches changes: limits and the audit are such observers (API-4).

A handler opens `RequestChanges.begin` around what it does, and so says what changes. Each observer sees the change
before it is made, and may refuse it, and then its outcome. Without the feature access there are no observers.
"""

from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel

from turnkeeper.api.callers import Caller
from turnkeeper.api.problems import problem_of
from turnkeeper.models.http_responses import Action
from turnkeeper.models.ids import WorkflowId, session_id_of

Starts = Literal["nothing", "unless it exists", "new"]
"""Whether a change starts its session: `new` has an id that was made for it."""

_CHANGES = "changes"


@dataclass
class Change:
    """What a caller asks for; never content. The handler sets ids that it learns while it makes the change."""

    caller: Caller
    action: Action
    operation: str
    """The id of the operation, or `mcp:` and the tool's or method's name."""
    workflow_id: WorkflowId | None = None
    session_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    fields: tuple[str, ...] = ()
    """The names of what is set, never the values."""
    starts: Starts = "nothing"


class ChangeObserver:
    """Watches what requests change. A feature's service that is one watches all of them, in the order of the features.

    Each method does nothing, unless a subclass overrides it.
    """

    async def check(self, change: Change) -> None:
        """Raise `ProblemError` to refuse a change."""

    def watch(self, change: Change) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while a change is made that nobody has refused.

        Entering it raises `ProblemError` if the change can't be watched; then it isn't made.
        """
        return nullcontext()

    def note_refusal(self, refusal: "Refusal") -> None:
        """Note that a request was refused before it began a change."""


@dataclass(frozen=True)
class Refusal:
    """A request that was refused with an HTTP status before it began a change."""

    caller: Caller
    operation: str
    status: int
    session_id: str | None = None

    def show(self, observers: Sequence[ChangeObserver]) -> None:
        for observer in observers:
            observer.note_refusal(self)


class RequestChanges:
    """What one request changes. Its handler says it, and gets to know who calls."""

    def __init__(
        self,
        observers: Sequence[ChangeObserver],
        caller: Caller,
        *,
        operation: str,
        scope: MutableMapping[str, Any],
    ) -> None:
        """`scope`: the ASGI scope of the request."""
        self.caller = caller
        self._observers = observers
        self._operation = operation
        self._scope = scope
        self._session_id: str | None = None
        self._has_begun = False

    @asynccontextmanager
    async def begin(
        self,
        action: Action,
        workflow_id: WorkflowId | None,
        *,
        message_id: str | None = None,
        call_id: str | None = None,
        fields: tuple[str, ...] = (),
        starts: Starts = "nothing",
    ) -> AsyncIterator[Change]:
        """Ask the observers, and show them the outcome of the block.

        Raises `ProblemError` before the block begins: then nothing may be done. A block that is cancelled may have
        changed something.
        """
        self._session_id = session_id_of(workflow_id) if workflow_id else self._session_id
        change = Change(
            self.caller,
            action,
            self._operation,
            workflow_id,
            session_id=self._session_id,
            message_id=message_id,
            call_id=call_id,
            fields=fields,
            starts=starts,
        )
        for observer in self._observers:
            await observer.check(change)
        self._has_begun = True
        async with AsyncExitStack() as watching:
            for observer in self._observers:
                await watching.enter_async_context(observer.watch(change))
            self._scope.setdefault("state", {})[_CHANGES] = True
            yield change

    @contextmanager
    def whole(self, *, must_change: bool, session_id: str | None = None) -> Iterator[Self]:
        """Show the observers a refusal that comes before any change; of a request that only reads, only for its role.

        Raises `RuntimeError` with `must_change`, for a request that changes something, if it succeeds without having
        said what. `session_id`: of the request, if it is known.
        """
        self._session_id = session_id
        try:
            yield self
        except Exception as error:
            status = problem_of(error, is_of_task=True).problem.status
            if not self._has_begun and (must_change or status == 403):
                refusal = Refusal(self.caller, self._operation, status, self._session_id)
                refusal.show(self._observers)
            raise
        if must_change and not self._has_begun:
            raise RuntimeError(f"{self._operation} does not say what it changes")


def changes_something(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the request of an ASGI `scope` has begun a change, so that it is answered in any case."""
    return _CHANGES in scope["state"]


def field_names(model: BaseModel, *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the fields that a request sets, with those inside `limits` and `history`."""
    names: list[str] = []
    for name in type(model).model_fields:
        value = getattr(model, name) if name in model.model_fields_set and name not in without else None
        nested = field_names(value) if name in ("limits", "history") and isinstance(value, BaseModel) else ()
        names += [f"{name}.{one}" for one in nested] or [name] * (value is not None)
    return tuple(names)
