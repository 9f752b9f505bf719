"""A person's requests by HTTP: the work of the role, and requests that role and tenant forbid."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.faults.team_day.evidence import Evidence
from tests.faults.team_day.people import Person, Tenant

PAUSE_SECONDS = (0.5, 3.0)

STREAM_END_SECONDS = 10.0
"""A stream of a revoked key ends within 5 s; the rest is for a busy machine."""

REVOKED_SECONDS = 3.0
"""A revoked key is refused within 1 s; the rest is for a busy machine."""

RESTARTING = (502, 503, 504)

UNKNOWN_ID = "no-such-session-0"

MAY_DIFFER = ("date", "content-length", "connection")
"""Headers of two equal answers: a gateway that stops closes its connections after the response."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """A request for a session, made by somebody of another tenant."""

    method: str
    path: str
    body: Json | None = None


INTRUSIONS = (
    Attempt("GET", "/workflow/{id}"),
    Attempt("GET", "/workflow/{id}/conversation"),
    Attempt("GET", "/workflow/{id}/conversation/full"),
    Attempt("GET", "/workflow/{id}/events"),
    Attempt("GET", "/workflow/{id}/queue"),
    Attempt("GET", "/workflow/{id}/context"),
    Attempt("GET", "/workflow/{id}/approvals"),
    Attempt("GET", "/tasks/{id}"),
    Attempt("GET", "/api/chat/{id}/messages"),
    Attempt("POST", "/workflow/{id}/prompt", {"message": "let me in"}),
    Attempt("POST", "/workflow/{id}/cancel", {}),
    Attempt("POST", "/workflow/{id}/end", {}),
    Attempt("PATCH", "/workflow/{id}", {"title": "mine"}),
    Attempt("POST", "/workflow/{id}/approvals/1.1.0", {"decision": "approve", "args_digest": "0" * 64}),
)

FORBIDDEN = {
    "reader": (
        Attempt("POST", "/workflow", {}),
        Attempt("POST", "/workflow/{id}/prompt", {"message": "may I?"}),
        Attempt("PATCH", "/workflow/{id}", {"title": "mine"}),
        Attempt("POST", "/workflow/{id}/end", {}),
        Attempt("DELETE", "/workflow/{id}"),
        Attempt("GET", "/audit"),
    ),
    "writer": (
        Attempt("POST", "/workflow", {"tool_policy": {"*": "allow"}}),
        Attempt("PATCH", "/workflow/{id}", {"tool_policy": {"*": "allow"}}),
        Attempt("POST", "/workflow/{id}/approvals/1.1.0", {"decision": "approve", "args_digest": "0" * 64}),
        Attempt("DELETE", "/workflow/{id}"),
        Attempt("GET", "/audit"),
    ),
    "approver": (Attempt("DELETE", "/workflow/{id}"), Attempt("GET", "/audit")),
    "admin": (),
}
"""Requests that each role must not make in its own tenant."""


@dataclass
class HttpPerson:
    """A person who works by HTTP until the day is over."""

    person: Person
    tenant: Tenant
    http: httpx.AsyncClient
    evidence: Evidence
    seed: str
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    async def run(self, over: asyncio.Event) -> None:
        work: list[Callable[[], Awaitable[None]]] = [self._read, self._intrude, self._overstep]
        if self.person.role != "reader":
            work += [self._prompt, self._prompt, self._configure]
        if self.person.role in ("approver", "admin"):
            work += [self._ask_for_a_write, self._decide]
        if self.person.role == "admin":
            work.append(self._delete)
        while not over.is_set():
            if self.person.is_removed:
                await self._try_the_revoked_key()
            elif not self.person.is_leaving:
                await self._random.choice(work)()
            await pause(self._random.uniform(*PAUSE_SECONDS), over=over)

    async def stream(self, over: asyncio.Event) -> None:
        """Read the events of the tenant's sessions, one stream after the other, and check each line."""
        while not over.is_set() and not self.person.is_leaving:
            session = self._session()
            if session:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._random.uniform(5, 30)):
                        await self.read_events(session, over=over)
                self.evidence.count("http", "stream", "ended")
            await pause(self._random.uniform(*PAUSE_SECONDS), over=over)

    async def read_events(
        self, session: str, *, over: asyncio.Event, opened: Callable[[], None] = lambda: None
    ) -> None:
        """Read the session's events until the stream ends or the day is over, and check each line."""
        path = f"/workflow/{session}/events"
        with suppress(httpx.TransportError):
            async with self.http.stream("GET", path, headers=self.person.headers, timeout=None) as response:
                opened()
                async for line in response.aiter_lines():
                    self.evidence.check_text(self.person, line, "a stream")
                    if over.is_set():
                        return

    async def _send(self, method: str, path: str, body: Json | None = None) -> httpx.Response | None:
        """Return the response; `None` without one, or from a gateway that restarts."""
        try:
            response = await self.http.request(method, path, json=body, headers=self.person.headers, timeout=30.0)
        except httpx.TransportError:
            return None
        self.evidence.check_text(self.person, response.text, f"{method} {path}")
        return None if response.status_code in RESTARTING else response

    async def _change(self, action: str, session: str, method: str, path: str, body: Json | None = None) -> bool:
        """Request a change that the role allows; return whether it was accepted."""
        key = self.person.key
        response = await self._send(method, path, body)
        self.evidence.count("http", action, response.status_code if response else "no response")
        if response is None:
            self.evidence.doubt(self.person, action, session)
        elif response.is_success:
            self.evidence.accept(self.person, action, session)
            return True
        elif response.status_code == 401 and (self.person.is_leaving or key != self.person.key):
            pass  # the key was rotated or revoked in the meantime
        elif response.status_code not in (404, 409, 410, 429):
            self.evidence.surprise(f"{self.person.name}: {method} {path} was answered {_summary_of(response)}")
        return False

    def _session(self) -> str | None:
        return self._random.choice(self.tenant.sessions) if self.tenant.sessions else None

    async def _read(self) -> None:
        session = self._session()
        paths = ["/workflow", "/tasks", "/me"]
        if session:
            paths += [f"/workflow/{session}{part}" for part in ("", "/conversation", "/context", "/queue")]
        response = await self._send("GET", self._random.choice(paths))
        self.evidence.count("http", "read", response.status_code if response else "no response")

    async def start_session(self, **fields: Any) -> str | None:
        session = f"s{uuid4().hex[:12]}"
        if await self._change("start", session, "POST", "/workflow", {"id": session, **fields}):
            self.tenant.sessions.append(session)
            return session
        return None

    async def _prompt(self) -> None:
        session = (
            self._session() if self.tenant.sessions and self._random.random() < 0.8 else await self.start_session()
        )
        if session:
            text = self._random.choice(("what time is it?", "list files", "remember that the word is"))
            body = {"message": f"{text} {self.tenant.word}", "id": uuid4().hex}
            await self._change("prompt", session, "POST", f"/workflow/{session}/prompt", body)

    async def _configure(self) -> None:
        if session := self._session():
            title = f"{self.person.name} about {self.tenant.word}"
            await self._change("configure", session, "PATCH", f"/workflow/{session}", {"title": title})

    async def _ask_for_a_write(self) -> None:
        if session := await self.start_session(tool_policy={"file_write": "ask"}):
            body = {"message": f"write {self.tenant.word} to {session}.txt", "id": uuid4().hex}
            await self._change("prompt", session, "POST", f"/workflow/{session}/prompt", body)

    async def _decide(self) -> None:
        for session in self.tenant.sessions[-10:]:
            response = await self._send("GET", f"/workflow/{session}/approvals")
            for approval in response.json().get("approvals", []) if response and response.is_success else ():
                path = f"/workflow/{session}/approvals/{approval['call_id']}"
                decision = {"decision": "approve", "args_digest": approval["args_digest"]}
                await self._change("approve", session, "POST", path, decision)
                return

    async def _delete(self) -> None:
        if len(self.tenant.sessions) > 5 and self._random.random() < 0.3:
            session = self.tenant.sessions.pop(0)
            await self._change("delete", session, "DELETE", f"/workflow/{session}")

    async def _overstep(self) -> None:
        """Try what the role forbids."""
        session = self._session()
        if session and FORBIDDEN[self.person.role]:
            attempt = self._random.choice(FORBIDDEN[self.person.role])
            await self._expect(403, "overstep", attempt, session)

    async def _intrude(self) -> None:
        """Try to reach a session of another tenant: the answer must be that to an unknown id."""
        foreign = [tenant for tenant in self.evidence.tenants if tenant.name != self.tenant.name and tenant.sessions]
        if not foreign:
            return
        session = self._random.choice(self._random.choice(foreign).sessions)
        attempt = self._random.choice(INTRUSIONS)
        key = self.person.key
        there = await self._send(attempt.method, attempt.path.format(id=session), attempt.body)
        nowhere = await self._send(attempt.method, attempt.path.format(id=UNKNOWN_ID), attempt.body)
        if there is None or nowhere is None or key != self.person.key or self.person.is_leaving:
            return
        self.evidence.count("http", "intrude", there.status_code)
        if 429 in (there.status_code, nowhere.status_code):
            return
        if there.status_code not in (403, 404) or _comparable(there, session) != _comparable(nowhere, UNKNOWN_ID):
            self.evidence.surprise(
                f"{self.person.name}: {attempt.method} {attempt.path} of another tenant's session was answered "
                f"{_summary_of(there)} {there.headers}, and of an unknown one {_summary_of(nowhere)} {nowhere.headers}"
            )

    async def _try_the_revoked_key(self) -> None:
        await self._expect(401, "after removal", Attempt("GET", "/workflow"), "")

    async def _expect(self, status: int, action: str, attempt: Attempt, session: str) -> None:
        key = self.person.key
        response = await self._send(attempt.method, attempt.path.format(id=session), attempt.body)
        self.evidence.count("http", action, response.status_code if response else "no response")
        was_same = key == self.person.key and (status == 401 or not self.person.is_leaving)
        if response is not None and was_same and response.status_code not in (status, 429):
            self.evidence.surprise(
                f"{self.person.name}: {attempt.method} {attempt.path} was answered {_summary_of(response)}"
            )


def _comparable(response: httpx.Response, session: str) -> tuple[int, str, list[tuple[str, str]]]:
    headers = [(name, value) for name, value in response.headers.items() if name not in MAY_DIFFER]
    return response.status_code, response.text.replace(session, "ID"), sorted(headers)


def _summary_of(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:200]}"


async def pause(seconds: float, *, over: asyncio.Event | None = None) -> None:
    """Wait for `seconds` of the day, or until it is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await (over or asyncio.Event()).wait()
