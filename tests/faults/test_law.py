"""The law of SES-12 against the real server: every client ends with the true transcript, whatever happens.

Hypothesis draws the order: prompts, bursts and duplicates, steering, interrupts and stops, polls with and without
revision, pages of the transcript; and meanwhile the session goes on in new runs, moves its turns to the archive, and
its worker is killed.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from temporalio.client import Client, WorkflowQueryFailedError

from tests.client import Client as PollingClient
from tests.faults.test_months import Workers
from tests.harness import DrivenSession
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

EXAMPLES, STEPS = 4, 25
MAX_KILLS = 1
"""Per example: a kill can cost six seconds of waiting."""

LIMITS = {"max_history_events": 50, "max_state_bytes": 160_000, "max_queued_bytes": 20_000}
"""Small limits: a session of twenty turns continues as new and is archived several times."""

SCRIPT = {
    "repeat": True,
    "responses": [
        {"calls": [{"name": "file_list", "args": {}}], "delay": 0.02},
        {"text": "The answer to {last_user}.", "delay": 0.02},
    ],
}


class Law(RuleBasedStateMachine):
    """One session, and a rule for everything that can happen to it."""

    address: str
    folder: Path

    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.sent_ids: list[str] = []
        self.kills = 0
        self.fates: dict[str, set[str]] = {}
        self.joined: list[PollingClient] = []
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.open = AsyncExitStack()
        temporal = await Client.connect(self.address, data_converter=DATA_CONVERTER)
        chosen = {"state_dir": str(self.folder), "workspace_root": str(self.folder), "task_queue": f"q-{uuid4()}"}
        self.stores = await self.open.enter_async_context(Stores.of(Settings(**chosen)))
        self.workers = await self.open.enter_async_context(Workers(temporal, chosen))
        handle = await temporal.start_workflow(
            "AgenticAIWorkflow",
            SessionInput.model_validate({"model": "offline:script/law", "limits": LIMITS}),
            id=f"s-{uuid4()}",
            task_queue=chosen["task_queue"],
            task_timeout=timedelta(seconds=2),
        )
        self.session = DrivenSession(temporal, handle, patient=True)

    # ---- what people do

    @rule(mode=st.sampled_from(["enqueue", "enqueue", "enqueue", "interrupt", "steer"]))
    def prompt(self, mode: str) -> None:
        self._send(mode=mode)

    @rule(count=st.integers(3, 8))
    def burst(self, count: int) -> None:
        for _ in range(count):
            self._send(mode="enqueue")
        self.runner.run(self._note_fates())

    @precondition(lambda self: self.sent_ids)
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        again = data.draw(st.sampled_from(self.sent_ids))
        self.runner.run(self.session.prompt(id=again, text="the same id once more"))

    @rule()
    def stop(self) -> None:
        self.runner.run(self._stop())

    async def _stop(self) -> None:
        running = (await self.session.state({"limit": 0})).current_message_id
        if running:
            await self.session.update("cancel_turn", {"message_id": running})

    def _send(self, *, mode: str) -> None:
        message_id = f"p{len(self.sent_ids) + 1}"
        self.sent_ids.append(message_id)
        self.runner.run(self.session.prompt(id=message_id, text=f"question {message_id} {'x' * 800}", mode=mode))

    async def _note_fates(self) -> None:
        """Record the fates of prompts: a session of this size remembers about the last hundred."""
        for fate in (await self.session.queue()).fates:
            self.fates.setdefault(fate.id, set()).add(fate.fate)

    # ---- what clients do

    @rule(target=clients, sends_revision=st.booleans())
    def join(self, sends_revision: bool) -> PollingClient:
        self.joined.append(PollingClient(sends_revision=sends_revision))
        return self.joined[-1]

    @rule(client=clients, limit=st.none() | st.integers(1, 3))
    def poll(self, client: PollingClient, limit: int | None) -> None:
        self.runner.run(client.poll(self.session.updates, limit=limit))

    @rule(client=clients)
    def hold_a_foreign_cursor(self, client: PollingClient) -> None:
        assert self.runner.run(client.poll(self.session.updates, last_seen_message_id="nonsense")).reset

    @rule(limit=st.integers(1, 5))
    def page_through_what_is_held(self, limit: int) -> None:
        self.runner.run(self._page(limit))

    async def _page(self, limit: int) -> None:
        page = await self.session.state({"limit": limit})
        while len(page.messages) == limit and page.first_number and page.first_number > page.archived_count + 1:
            ids = [turn.id for turn in page.messages]
            assert len(set(ids)) == len(ids)
            try:
                older = await self.session.state({"before": ids[0], "limit": limit})
            except WorkflowQueryFailedError as refusal:
                if "no turn" not in str(refusal):
                    raise
                return  # it was archived in between
            assert older.first_number is None or older.first_number + len(older.messages) == page.first_number
            page = older

    # ---- what the world does

    @rule()
    def time_passes(self) -> None:
        """Wait until the session's revision has grown, if there is anything to do."""
        self.runner.run(self._pass_time())

    async def _pass_time(self) -> None:
        before = await self.session.state({"limit": 0})
        await self.session.until(lambda s: s.revision > before.revision + 5 or s.status == "idle", turns=0)

    @precondition(lambda self: self.kills < MAX_KILLS and len(self.sent_ids) > 5)
    @rule()
    def the_worker_is_killed(self) -> None:
        self.kills += 1
        self.runner.run(self.workers.kill())

    # ---- what is true in the end

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            try:
                self.runner.run(self._check())
            finally:
                self.runner.run(self._close())
                self.runner.close()

    async def _close(self) -> None:
        await self.session.handle.terminate()
        await self.open.aclose()

    async def _check(self) -> None:
        await self.session.until(lambda s: s.status == "idle" and not s.queue_length, turns=0, bound=60)
        for client in self.joined:
            await client.catch_up(self.session.updates)
        await self.session.until(lambda s: s.session.archive.failing_since is None, turns=0)
        transcript = await self._transcript()
        self._check_turns(transcript)
        await self._check_fates(transcript)
        turns_held = len((await self.session.state()).messages)
        for client in self.joined:
            assert client.turns == transcript[len(transcript) - len(client.turns) :]
            assert len(client.turns) >= turns_held or not client.turns

    async def _transcript(self) -> list[ConversationMessage]:
        """Return what the archive has and the session no longer, then what the session has."""
        while True:
            page = await self.stores.archive.page(self.session.handle.id, before=None, limit=None, max_bytes=10**9)
            state = await self.session.state()
            if len(page) >= state.archived_count:
                return [archived.turn for archived in page[: state.archived_count]] + state.messages

    def _check_turns(self, transcript: list[ConversationMessage]) -> None:
        ids = [turn.id for turn in transcript]
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(self.sent_ids)
        assert all(turn.status in ("completed", "cancelled") for turn in transcript)
        revisions = [turn.revision for turn in transcript]
        assert revisions == sorted(set(revisions))

    async def _check_fates(self, transcript: list[ConversationMessage]) -> None:
        """Every prompt has exactly one fate; a turn is what started, and nothing else."""
        await self._note_fates()
        for message_id in self.sent_ids:
            assert self.fates.get(message_id), f"{message_id} has no fate"
            assert len(self.fates[message_id] - {"rejected"}) <= 1, (message_id, self.fates[message_id])
        started = {message_id for message_id, fates in self.fates.items() if "started" in fates}
        assert started == {turn.id for turn in transcript}


def test_ses_12_the_update_law_holds_against_the_real_server(temporal: Client, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "law.json").write_text(json.dumps(SCRIPT))
    Law.address, Law.folder = temporal.service_client.config.target_host, tmp_path
    run_state_machine_as_test(
        Law,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
