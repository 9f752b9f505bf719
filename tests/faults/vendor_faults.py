"""Everything a vendor can do to a model call, independent of the API; the tables of faults draw from it."""

from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.testing.vendor_server import Answer, Call, Fault, Reply, VendorServer

AT_ONCE = {"retry-after-ms": "1"}
HALF = "This is"

CALL = Answer(think="I look.", text="I look it up.", calls=[Call("c1", "look", {"at": "it"})])
ANSWER = Answer(text="This is the whole answer, from its first word to its last.")

MIDDLE = 3
"""After this number of chunks every API has begun its answer, and none has ended it."""


@dataclass(frozen=True)
class Trouble:
    """The fault of one model call: `replies`, made of the answer it would have had, in `requests` requests.

    `end` is `answer`, the type of an error, or what the workflow is to do: `wait` or the cause of a repetition.
    """

    name: str
    replies: Callable[[VendorServer, Reply], list[Reply]]
    requests: int
    end: str = "answer"

    def __str__(self) -> str:
        return self.name

    def script(self, wire: VendorServer, whole: Reply) -> None:
        """Queue the replies, and the whole answer if it comes to that."""
        replies = self.replies(wire, whole)
        missing = self.requests - len(replies)
        assert missing in ((0, 1) if self.end == "answer" else (0,))
        wire.script(*replies, *[whole] * missing)


def refuses(fault: Fault, headers: dict[str, str] | None = None, *, times: int = 1) -> Callable[..., list[Reply]]:
    return lambda wire, whole: [wire.fault(fault, headers)] * times


def answers(answer: Answer, *, times: int = 1) -> Callable[..., list[Reply]]:
    return lambda wire, whole: [wire.reply(answer)] * times


def passing(name: str, fault: Fault, headers: dict[str, str]) -> Trouble:
    return Trouble(name, refuses(fault, headers), requests=2)


def lasting(fault: Fault, end: str, *, requests: int = 1) -> Trouble:
    return Trouble(f"{fault} that lasts", refuses(fault, times=requests), requests, end)


def broken(name: str, make: Callable[[VendorServer, Reply], Reply]) -> Trouble:
    """An answer that is broken the first time and complete the second time."""
    return Trouble(name, lambda wire, whole: [make(wire, whole)], requests=2)


def outage(wire: VendorServer, whole: Reply) -> list[Reply]:
    """Four failures that pass at once, and one that lasts longer than a turn of a minute."""
    return [*[wire.fault("overloaded", AT_ONCE)] * 4, wire.fault("overloaded", {"retry-after": "90"})]
